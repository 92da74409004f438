package freeze

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// checkPeriod is how often it is checked whether all has stopped, stopTimeout for how long: a process stops once its system call is over.
	checkPeriod = 2 * time.Millisecond
	stopTimeout = 20 * time.Second
)

// Target is a running cluster.
type Target struct {
	// Supervisor is the process that the user started.
	Supervisor int
	// Isolated says that the Supervisor is only the outer process of a cluster in namespaces of its own, whose processes are below it.
	Isolated bool
	// Cgroup is the parent of the Pods' cgroups, such as /berth-0123abcd.
	Cgroup string
	// Disks is the directory of the images of loop devices that the cluster uses.
	Disks string
}

// Frozen is a cluster that stands still.
type Frozen struct {
	guard   *exec.Cmd
	release io.Closer
	// Limited says that the cluster must not be frozen for longer than ShortLimit, because its supervisor goes on.
	Limited bool
}

// ShortLimit is how long components may be stopped without their supervisor: then it would start them again.
const ShortLimit = 12 * time.Second

// Freeze stops the cluster's processes. guard is the command that runs RunGuard with the same Target; it inherits a pipe as standard input.
// The caller calls Thaw, also to learn that the cluster stood still all the time.
func Freeze(ctx context.Context, target Target, guard *exec.Cmd) (_ *Frozen, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer read.Close()
	guard.Stdin = read
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal of the terminal ends it
	if err := guard.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start the process that ends the standstill: %w", err), write.Close())
	}
	frozen := &Frozen{guard: guard, release: write}
	defer func() {
		if err != nil {
			err = errors.Join(err, frozen.Thaw())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	if frozen.Limited, err = target.stopComponents(ctx); err != nil {
		return nil, err
	}
	if err := target.freezePods(ctx); err != nil {
		return nil, err
	}
	return frozen, target.flush()
}

// Thaw lets the cluster continue, and returns when it does. It may be called once.
func (f *Frozen) Thaw() error {
	err := f.release.Close()
	if waitErr := f.guard.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("let the cluster continue: %w", waitErr))
	}
	return err
}

// RunGuard waits for the end of input and then lets the cluster continue.
func RunGuard(input io.Reader, target Target) error {
	_, _ = io.Copy(io.Discard, input) // its end is what counts
	errs := []error{target.thawPods()}
	processes, err := target.components()
	errs = append(errs, err)
	slices.Reverse(processes) // the supervisor is the last
	for _, process := range processes {
		if err := unix.Kill(process.pid, unix.SIGCONT); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("let process %d continue: %w", process.pid, err))
		}
	}
	return errors.Join(errs...)
}

// stopComponents stops the cluster's processes but for those of Pods. limited reports that the supervisor goes on: it belongs to the jobs of
// a terminal's shell, which would take the terminal from it.
func (t Target) stopComponents(ctx context.Context) (limited bool, err error) {
	err = wait.PollUntilContextCancel(ctx, checkPeriod, true, func(context.Context) (bool, error) {
		processes, err := t.components()
		if err != nil {
			return false, err
		}
		if len(processes) == 0 {
			return false, fmt.Errorf("the cluster has ended: process %d has no children", t.Supervisor)
		}
		all := true
		for _, process := range processes {
			if process.pid == t.Supervisor && !t.Isolated && process.terminal {
				limited = true
				continue
			}
			if process.stopped {
				continue
			}
			all = false
			if err := unix.Kill(process.pid, unix.SIGSTOP); err != nil && !errors.Is(err, unix.ESRCH) {
				return false, fmt.Errorf("stop process %d: %w", process.pid, err)
			}
		}
		return all, nil
	})
	if err != nil {
		return limited, fmt.Errorf("stop the cluster's components: %w", err)
	}
	return limited, nil
}

// Args are the arguments from which ParseArgs makes the Target again.
func (t Target) Args() []string {
	return []string{strconv.Itoa(t.Supervisor), strconv.FormatBool(t.Isolated), t.Cgroup, t.Disks}
}

// ParseArgs parses what Args returns.
func ParseArgs(args []string) (t Target, err error) {
	if len(args) != 4 {
		return t, fmt.Errorf("want 4 arguments, got %d", len(args))
	}
	if t.Supervisor, err = strconv.Atoi(args[0]); err != nil {
		return t, err
	}
	t.Isolated, err = strconv.ParseBool(args[1])
	t.Cgroup, t.Disks = args[2], args[3]
	return t, err
}
