package nfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/volume/mounts"
)

const (
	// unmountTimeout bounds one call of umount. The kernel has long taken the mount out of its table by then, and waits for a server that
	// does not answer, to return what it has granted. Upstream's kubelet waits as long.
	unmountTimeout = time.Minute
	// answerTimeout is how long a server may take to answer before it counts as one that does not.
	answerTimeout = 10 * time.Second
	// killTimeout bounds the wait for a program that was killed: it does not end while the kernel writes to the server what was not written yet.
	killTimeout = 5 * time.Second
)

// processUnmounter unmounts in processes of its own, which can be killed: a system call that waits for a file server holds its thread until
// the server answers, and no other thread can end that.
type processUnmounter struct {
	mounts.Mounter
	// umount and stat are the programs of util-linux and coreutils. Without umount, system calls unmount.
	umount, stat                               string
	unmountTimeout, answerTimeout, killTimeout time.Duration
}

// Unmount implements mounts.Mounter. A share that is in use stays mounted, unless its server does not answer: then the uses are waits for the
// server, perhaps of this process as it measures the volume, and the mount is taken away from under them. Other mounts of the share, of other
// Pods, are left alone, which umount --force would not do.
func (u processUnmounter) Unmount(target string) error {
	if _, err := exec.LookPath(u.umount); err != nil {
		return u.Mounter.Unmount(target)
	}
	// Without helpers and canonical names the program sends no request to the server before it unmounts.
	err := u.run(u.unmountTimeout, target, u.umount, "--internal-only", "--no-canonicalize")
	if err != nil && u.isMounted(target) && !u.answers(target) {
		err = u.run(u.unmountTimeout, target, u.umount, "--internal-only", "--no-canonicalize", "--lazy")
	}
	if err != nil && u.isMounted(target) {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil // a program that still waits is the kernel's to end
}

// isMounted reports whether something is mounted on target, as far as that is known.
func (u processUnmounter) isMounted(target string) bool {
	mounted, err := u.IsMountPoint(target)
	return mounted || err != nil
}

// answers reports whether the server of what is mounted on target does not fail to answer.
func (u processUnmounter) answers(target string) bool {
	return !errors.Is(u.run(u.answerTimeout, target, u.stat, "--file-system"), context.DeadlineExceeded)
}

// run runs a program with target as its last argument. The error of a program that was killed because it took too long wraps
// context.DeadlineExceeded.
func (u processUnmounter) run(timeout time.Duration, target, program string, arguments ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, append(arguments, target)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go contain.Guard("nfs.unmount", target, func() { ended <- cmd.Wait() })()
	deadline := time.NewTimer(timeout + u.killTimeout)
	defer deadline.Stop()
	select {
	case err := <-ended:
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(out.Bytes()))
		}
		if err == nil {
			return nil
		}
	case <-deadline.C:
	}
	return fmt.Errorf("%s: the server did not answer for %s: %w", program, timeout, context.DeadlineExceeded)
}
