package containerd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// sharedMemory is where containerd mounts the memory that the containers of a sandbox have at /dev/shm.
func (c Config) sharedMemory(sandbox string) string {
	return filepath.Join(c.State(), "io.containerd.grpc.v1.cri", "sandboxes", sandbox, "shm")
}

// releaseSharedMemory unmounts the shared memory of a sandbox that has ended, and reports whether it was mounted. Containers that have
// not ended yet keep it until they do.
func (c Config) releaseSharedMemory(sandbox string) (released bool, err error) {
	err = unix.Unmount(c.sharedMemory(sandbox), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // it is no mount, or there is none
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("unmount the shared memory of sandbox %s, which has ended: %w", sandbox, err)
	}
	return true, nil
}

// ReleaseSharedMemory unmounts the shared memory of the sandboxes that have ended, and returns their ids. containerd does that when it
// stops a sandbox that runs; that of one that ended by itself, as when its shim died, would keep its content until the sandbox
// is removed, and the kubelet keeps it as long as a container of it.
func (c Config) ReleaseSharedMemory(ctx context.Context) (released []string, err error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		matches, _ := filepath.Match(c.sharedMemory("*"), m.Mountpoint) // the pattern is right
		return !matches, false
	})
	if err != nil {
		return nil, fmt.Errorf("find the shared memory of sandboxes: %w", err)
	}
	if len(mounts) == 0 {
		return nil, nil
	}
	conn, err := dial(c.Socket())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ended, err := runtimeapi.NewRuntimeServiceClient(conn).ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}},
	})
	if err != nil {
		return nil, fmt.Errorf("list the sandboxes that have ended: %w", err)
	}
	var errs []error
	for _, box := range ended.Items {
		done, err := c.releaseSharedMemory(box.Id)
		if done {
			released = append(released, box.Id)
		}
		errs = append(errs, err)
	}
	return released, errors.Join(errs...)
}
