package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A list that exceeds the size of a message, because Pods have many labels and annotations or because there are many of them, is read
// as a stream (KEP-5825). A runtime fails for such a list that has no streams, or whose stream has thousands of items in one message, as
// containerd's: the error says what to do.

// ListPodSandbox implements runtimeapi.RuntimeServiceClient.
func (c *Client) ListPodSandbox(ctx context.Context, in *runtimeapi.ListPodSandboxRequest, opts ...grpc.CallOption) (*runtimeapi.ListPodSandboxResponse, error) {
	out, err := c.RuntimeServiceClient.ListPodSandbox(ctx, in, opts...)
	if !tooLong(err) {
		return out, err
	}
	items, err := collect(ctx, c.timeout, err, func(ctx context.Context) (grpc.ServerStreamingClient[runtimeapi.StreamPodSandboxesResponse], error) {
		return c.StreamPodSandboxes(ctx, &runtimeapi.StreamPodSandboxesRequest{Filter: in.Filter}, opts...)
	}, (*runtimeapi.StreamPodSandboxesResponse).GetPodSandboxes)
	return &runtimeapi.ListPodSandboxResponse{Items: items}, err
}

// ListContainers implements runtimeapi.RuntimeServiceClient.
func (c *Client) ListContainers(ctx context.Context, in *runtimeapi.ListContainersRequest, opts ...grpc.CallOption) (*runtimeapi.ListContainersResponse, error) {
	out, err := c.RuntimeServiceClient.ListContainers(ctx, in, opts...)
	if !tooLong(err) {
		return out, err
	}
	items, err := collect(ctx, c.timeout, err, func(ctx context.Context) (grpc.ServerStreamingClient[runtimeapi.StreamContainersResponse], error) {
		return c.StreamContainers(ctx, &runtimeapi.StreamContainersRequest{Filter: in.Filter}, opts...)
	}, (*runtimeapi.StreamContainersResponse).GetContainers)
	return &runtimeapi.ListContainersResponse{Containers: items}, err
}

// ListPodSandboxStats implements runtimeapi.RuntimeServiceClient.
func (c *Client) ListPodSandboxStats(ctx context.Context, in *runtimeapi.ListPodSandboxStatsRequest, opts ...grpc.CallOption) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	out, err := c.RuntimeServiceClient.ListPodSandboxStats(ctx, in, opts...)
	if !tooLong(err) {
		return out, err
	}
	items, err := collect(ctx, c.timeout, err, func(ctx context.Context) (grpc.ServerStreamingClient[runtimeapi.StreamPodSandboxStatsResponse], error) {
		return c.StreamPodSandboxStats(ctx, &runtimeapi.StreamPodSandboxStatsRequest{Filter: in.Filter}, opts...)
	}, (*runtimeapi.StreamPodSandboxStatsResponse).GetPodSandboxStats)
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: items}, err
}

// ListContainerStats implements runtimeapi.RuntimeServiceClient.
func (c *Client) ListContainerStats(ctx context.Context, in *runtimeapi.ListContainerStatsRequest, opts ...grpc.CallOption) (*runtimeapi.ListContainerStatsResponse, error) {
	out, err := c.RuntimeServiceClient.ListContainerStats(ctx, in, opts...)
	if !tooLong(err) {
		return out, err
	}
	items, err := collect(ctx, c.timeout, err, func(ctx context.Context) (grpc.ServerStreamingClient[runtimeapi.StreamContainerStatsResponse], error) {
		return c.StreamContainerStats(ctx, &runtimeapi.StreamContainerStatsRequest{Filter: in.Filter}, opts...)
	}, (*runtimeapi.StreamContainerStatsResponse).GetContainerStats)
	return &runtimeapi.ListContainerStatsResponse{Stats: items}, err
}

// tooLong reports whether a list has failed because it exceeds the size of a message, here or in the runtime.
func tooLong(err error) bool { return err != nil && code(err) == codes.ResourceExhausted }

// collect reads a stream to its end, within the timeout if ctx has no deadline. failure is why the list needs one.
func collect[R, T any](ctx context.Context, timeout time.Duration, failure error, open func(context.Context) (grpc.ServerStreamingClient[R], error),
	items func(*R) []T,
) ([]T, error) {
	var cancel context.CancelFunc
	if _, bounded := ctx.Deadline(); bounded {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	}
	defer cancel()
	stream, err := open(ctx)
	if err != nil {
		return nil, streamError(err, failure)
	}
	var all []T
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, streamError(err, failure)
		}
		all = append(all, items(part)...)
	}
}

func streamError(err, failure error) error {
	if IsUnimplemented(err) || tooLong(err) {
		return fmt.Errorf("%w: the labels and annotations of this node's Pods are too long for the container runtime's list: remove Pods with "+
			"large annotations, or let the runtime send more (containerd: max_send_message_size in its configuration of grpc)", failure)
	}
	return err
}
