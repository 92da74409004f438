package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// netnsName matches the names of the network namespaces that containerd creates.
var netnsName = regexp.MustCompile(`cni-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// NetworkNamespaces returns the paths of the network namespaces that containerd has created.
func (c Config) NetworkNamespaces() []string {
	paths, _ := filepath.Glob(filepath.Join(c.State(), "io.containerd.grpc.v1.cri", "netns", "cni-*")) // the pattern is right
	return paths
}

// ReleaseNetworkNamespaces removes those of the given network namespaces that no sandbox uses, and returns their number.
// They must have been listed before this containerd was started: a containerd that died between creating a namespace and
// saving its sandbox leaves the namespace behind, while a new namespace may not be visible as its sandbox's yet.
func (c Config) ReleaseNetworkNamespaces(ctx context.Context, before []string) (released int, err error) {
	if len(before) == 0 {
		return 0, nil
	}
	conn, err := dial(c.Socket())
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	used, complete, err := namespacesInUse(ctx, runtimeapi.NewRuntimeServiceClient(conn))
	if err != nil {
		return 0, fmt.Errorf("find network namespaces of no sandbox: %w", err)
	}
	if !complete {
		return 0, nil
	}
	var errs []error
	for _, path := range before {
		if used[filepath.Base(path)] {
			continue
		}
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount network namespace %s, which no sandbox has: %w", path, err))
			continue
		}
		if err := os.Remove(path); err != nil {
			if !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove network namespace %s, which no sandbox has: %w", path, err))
			}
			continue
		}
		released++
	}
	return released, errors.Join(errs...)
}

// namespacesInUse returns the names of the network namespaces that sandboxes use. complete is false if a sandbox does not
// report its own: then none may be considered unused.
func namespacesInUse(ctx context.Context, client runtimeapi.RuntimeServiceClient) (used map[string]bool, complete bool, err error) {
	boxes, err := client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, false, fmt.Errorf("list sandboxes: %w", err)
	}
	used, complete = make(map[string]bool), true
	for _, box := range boxes.Items {
		answer, err := client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: box.Id, Verbose: true})
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, false, fmt.Errorf("read sandbox %s: %w", box.Id, err)
		}
		for _, name := range netnsName.FindAllString(answer.Info["info"], -1) {
			used[name] = true
		}
		// It is empty if the sandbox uses the host's, or has not created one yet.
		complete = complete && strings.Contains(answer.Info["info"], `"NetNSPath":`)
	}
	return used, complete, nil
}
