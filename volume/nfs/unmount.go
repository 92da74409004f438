package nfs

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"time"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/volume/mounts"
)

const (
	// unmountTimeout bounds the unmounting of a share. By then the kernel has long taken the mount out of the table, and waits for a server
	// that does not answer, to return what it has granted. Upstream's kubelet waits as long.
	unmountTimeout = time.Minute
	// killTimeout bounds the wait for a program that was killed: it does not end while the kernel writes to the server what was not written yet.
	killTimeout = 5 * time.Second
)

// processUnmounter unmounts in a process of its own, which can be killed: a system call that waits for a file server holds its thread until
// the server answers, and no other thread can end that.
type processUnmounter struct {
	mounts.Mounter
	program              string
	timeout, killTimeout time.Duration
}

// Unmount implements mounts.Mounter. It fails if something is still mounted on target when the program has ended, or was killed.
func (u processUnmounter) Unmount(target string) error {
	program, err := exec.LookPath(u.program)
	if err != nil {
		return u.Mounter.Unmount(target)
	}
	ctx, cancel := context.WithTimeout(context.Background(), u.timeout)
	defer cancel()
	var out bytes.Buffer
	// Without helpers and canonical names the program sends no request to the server before it unmounts.
	cmd := exec.CommandContext(ctx, program, "--internal-only", "--no-canonicalize", target)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	ended := make(chan error, 1)
	go contain.Guard("nfs.unmount", target, func() { ended <- cmd.Wait() })()
	deadline := time.NewTimer(u.timeout + u.killTimeout)
	defer deadline.Stop()
	select {
	case err := <-ended:
		if err == nil {
			return nil
		}
		if mounted, checkErr := u.IsMountPoint(target); checkErr == nil && !mounted {
			return nil
		}
		return fmt.Errorf("unmount %s: %w: %s", target, err, bytes.TrimSpace(out.Bytes()))
	case <-deadline.C:
	}
	if mounted, err := u.IsMountPoint(target); err == nil && !mounted {
		return nil // the kernel goes on by itself
	}
	return fmt.Errorf("unmount %s: the server did not answer for %s", target, u.timeout)
}
