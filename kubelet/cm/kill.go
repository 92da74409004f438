package cm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	cgroupslib "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"
)

// maxKillRounds bounds how often new children of killed processes are searched for.
const maxKillRounds = 64

// killAll kills every process in the cgroups at these directories and below, and returns when none is left or ctx ends.
// It waits for the processes' exits, so it does not poll.
func killAll(ctx context.Context, dirs []string) error {
	for range maxKillRounds {
		for _, dir := range dirs {
			// Cgroup v2 kills a whole tree at once, forks included; v1 does not have the file.
			if file := filepath.Join(dir, "cgroup.kill"); cgroupslib.PathExists(file) {
				_ = os.WriteFile(file, []byte("1"), 0) // the loop below finds the survivors
			}
		}
		victims, err := openAll(dirs)
		if err != nil {
			return err
		}
		if len(victims) == 0 {
			return nil
		}
		err = killAndWait(ctx, victims)
		closeAll(victims)
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("kill processes in cgroup %q: new ones keep appearing", dirs[0])
}

// openAll returns a pidfd of every process in the cgroups. A process that has left them before its pidfd was opened may
// be another one with its number and is dropped. The map is empty only if there were no processes left.
func openAll(dirs []string) (map[int]int, error) {
	for {
		before, err := pidsIn(dirs)
		if err != nil || len(before) == 0 {
			return nil, err
		}
		victims := map[int]int{}
		for pid := range before {
			fd, err := unix.PidfdOpen(pid, 0)
			if errors.Is(err, unix.ESRCH) {
				continue
			}
			if err != nil {
				closeAll(victims)
				return nil, fmt.Errorf("open process %d: %w", pid, err)
			}
			victims[pid] = fd
		}
		after, err := pidsIn(dirs)
		if err != nil {
			closeAll(victims)
			return nil, err
		}
		for pid, fd := range victims {
			if !after[pid] {
				_ = unix.Close(fd)
				delete(victims, pid)
			}
		}
		if len(victims) > 0 || len(after) == 0 {
			return victims, nil
		}
	}
}

func closeAll(fds map[int]int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// pidsIn lists the processes in the cgroups and below. Processes that this PID namespace cannot see are left out.
func pidsIn(dirs []string) (map[int]bool, error) {
	pids := map[int]bool{}
	for _, dir := range dirs {
		found, err := cgroupslib.GetAllPids(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
			return nil, fmt.Errorf("list processes in cgroup %q: %w", dir, err)
		}
		for _, pid := range found {
			if pid > 0 {
				pids[pid] = true
			}
		}
	}
	return pids, nil
}

// killAndWait kills the processes behind the pidfds and waits until all have exited or ctx ends.
func killAndWait(ctx context.Context, victims map[int]int) error {
	fds := make([]int, 0, len(victims))
	for pid, fd := range victims {
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
		fds = append(fds, fd)
	}
	return waitReadable(ctx, fds)
}

// waitReadable waits until every descriptor is readable (a pidfd is once its process has exited) or ctx ends.
func waitReadable(ctx context.Context, fds []int) error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("create a pipe: %w", err)
	}
	defer func() { _ = r.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = w.Close() }) // closing the pipe ends the wait
	defer func() {
		if stop() {
			_ = w.Close()
		}
	}()
	waiting := []unix.PollFd{{Fd: int32(r.Fd()), Events: unix.POLLIN}}
	for _, fd := range fds {
		waiting = append(waiting, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	for len(waiting) > 1 {
		if _, err := unix.Poll(waiting, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for killed processes: %w", err)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("wait for %d killed processes: %w", len(waiting)-1, ctx.Err())
		}
		left := waiting[:1]
		for _, p := range waiting[1:] {
			if p.Revents == 0 {
				left = append(left, p)
			}
		}
		waiting = left
	}
	return nil
}
