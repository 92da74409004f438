package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clientportforward "k8s.io/client-go/tools/portforward"
	clientremotecommand "k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/berth-dev/berth/internal/contain"
)

// GetExec returns the URL where the runtime serves the streams of a command in a container.
func (k *Kubelet) GetExec(podFullName string, podUID types.UID, containerName string, cmd []string,
	streamOpts remotecommand.Options,
) (*url.URL, error) {
	pod, err := k.findPod(podFullName, podUID)
	if err != nil {
		return nil, err
	}
	return k.parts.Host.GetExec(k.ctx, pod, containerName, cmd, streamOpts)
}

// GetAttach returns the URL where the runtime serves the streams of a container. Whether they are a terminal is set in its spec.
func (k *Kubelet) GetAttach(podFullName string, podUID types.UID, containerName string,
	streamOpts remotecommand.Options,
) (*url.URL, error) {
	pod, err := k.findPod(podFullName, podUID)
	if err != nil {
		return nil, err
	}
	return k.parts.Host.GetAttach(k.ctx, pod, containerName, streamOpts)
}

// GetPortForward returns the URL where the runtime serves ports of a Pod.
func (k *Kubelet) GetPortForward(podName, podNamespace string, podUID types.UID,
	portForwardOpts portforward.V4Options,
) (*url.URL, error) {
	pod, err := k.findPod(podName+"_"+podNamespace, podUID)
	if err != nil {
		return nil, err
	}
	return k.parts.Host.GetPortForward(k.ctx, pod, portForwardOpts)
}

// RunInContainer runs a command in a container and returns its output, also beside the error of a command that
// fails.
func (k *Kubelet) RunInContainer(podFullName string, podUID types.UID, containerName string, cmd []string,
) ([]byte, error) {
	pod, err := k.findPod(podFullName, podUID)
	if err != nil {
		return nil, err
	}
	return k.parts.Host.RunInContainer(k.ctx, pod, containerName, cmd)
}

// ExecInContainer runs a command in a container with the given streams, of which any may be nil, for at most timeout;
// 0 is no limit. A command that ends with another code than 0 is an error that has it (k8s.io/client-go/util/exec).
func (k *Kubelet) ExecInContainer(podFullName string, podUID types.UID, containerName string, cmd []string,
	stdin io.Reader, stdout, stderr io.WriteCloser, tty bool, resize <-chan clientremotecommand.TerminalSize,
	timeout time.Duration,
) error {
	location, err := k.GetExec(podFullName, podUID, containerName, cmd, remotecommand.Options{
		Stdin: stdin != nil, Stdout: stdout != nil, Stderr: stderr != nil && !tty, TTY: tty,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(k.ctx)
	defer cancel()
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	return stream(ctx, location, stdin, stdout, stderr, tty, resize)
}

// AttachContainer connects the given streams, of which any may be nil, to those of a container's process.
func (k *Kubelet) AttachContainer(podFullName string, podUID types.UID, containerName string, stdin io.Reader,
	stdout, stderr io.WriteCloser, tty bool, resize <-chan clientremotecommand.TerminalSize,
) error {
	location, err := k.GetAttach(podFullName, podUID, containerName, remotecommand.Options{
		Stdin: stdin != nil, Stdout: stdout != nil, Stderr: stderr != nil, TTY: tty,
	})
	if err != nil {
		return err
	}
	return stream(k.ctx, location, stdin, stdout, stderr, tty, resize)
}

// stream connects to the runtime's stream server as kubectl connects to that of the API server.
func stream(ctx context.Context, location *url.URL, stdin io.Reader, stdout, stderr io.WriteCloser, tty bool,
	resize <-chan clientremotecommand.TerminalSize,
) error {
	executor, err := clientremotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, location)
	if err != nil {
		return fmt.Errorf("open stream: %w", err)
	}
	options := clientremotecommand.StreamOptions{Stdin: stdin, Tty: tty}
	// A nil of a concrete type would not be nil in an interface.
	if stdout != nil {
		options.Stdout = stdout
	}
	if stderr != nil && !tty {
		options.Stderr = stderr
	}
	if resize != nil {
		options.TerminalSizeQueue = sizes{ctx, resize}
	}
	return executor.StreamWithContext(ctx, options)
}

// sizes are the sizes of a terminal, one after another.
type sizes struct {
	ctx  context.Context
	from <-chan clientremotecommand.TerminalSize
}

// Next implements remotecommand.TerminalSizeQueue.
func (s sizes) Next() *clientremotecommand.TerminalSize {
	select {
	case size, open := <-s.from:
		if open {
			return &size
		}
	case <-s.ctx.Done():
	}
	return nil
}

// PortForward connects the stream to a port of the Pod and returns when one side has closed. It closes the stream.
func (k *Kubelet) PortForward(podFullName string, podUID types.UID, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	pod, err := k.findPod(podFullName, podUID)
	if err != nil {
		return err
	}
	location, err := k.parts.Host.GetPortForward(k.ctx, pod, portforward.V4Options{Ports: []int32{port}})
	if err != nil {
		return err
	}
	transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		return fmt.Errorf("forward port %d: %w", port, err)
	}
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, location)
	connection, _, err := dialer.Dial(clientportforward.PortForwardProtocolV1Name)
	if err != nil {
		return fmt.Errorf("forward port %d: %w", port, err)
	}
	defer connection.Close()
	headers := http.Header{}
	headers.Set(corev1.StreamType, corev1.StreamTypeError)
	headers.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	headers.Set(corev1.PortForwardRequestIDHeader, "0")
	failures, err := connection.CreateStream(headers)
	if err != nil {
		return fmt.Errorf("forward port %d: %w", port, err)
	}
	if err := failures.Close(); err != nil { // nothing is written to it from here
		return fmt.Errorf("forward port %d: %w", port, err)
	}
	headers.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := connection.CreateStream(headers)
	if err != nil {
		return fmt.Errorf("forward port %d: %w", port, err)
	}
	return copyStreams(port, stream, data, failures, func() { _ = connection.Close() })
}

// copyStreams copies both ways until the Pod's side has closed, and returns its error message. cut ends all streams.
func copyStreams(port int32, near io.ReadWriteCloser, far io.ReadWriteCloser, failures io.Reader, cut func()) error {
	sent := make(chan struct{})
	go func() {
		defer contain.Recover("kubelet.copyStreams", "")
		defer close(sent)
		_, err := io.Copy(far, near)
		_ = far.Close() // closes one direction: the Pod may still send
		if err != nil {
			cut()
		}
	}()
	_, copyErr := io.Copy(near, far)
	message, readErr := io.ReadAll(failures)
	near.Close()
	cut()
	<-sent
	if len(message) > 0 {
		return fmt.Errorf("forward port %d: %s", port, message)
	}
	if err := errors.Join(copyErr, readErr); err != nil {
		return fmt.Errorf("forward port %d: %w", port, err)
	}
	return nil
}

// GetKubeletContainerLogs copies the part of a container's log that the options select.
func (k *Kubelet) GetKubeletContainerLogs(podFullName, containerName string, logOptions *corev1.PodLogOptions,
	stdout, stderr io.Writer,
) error {
	pod, err := k.findPod(podFullName, "")
	if err != nil {
		return err
	}
	if logOptions == nil {
		logOptions = &corev1.PodLogOptions{}
	}
	return k.parts.Host.ContainerLogs(k.ctx, pod, containerName, logOptions, stdout, stderr)
}
