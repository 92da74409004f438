package cm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// initCgroup is the cgroup into which the processes of the topmost one are moved.
const initCgroup = "init"

// maxMoveAttempts is how often the list of processes is read: a listed one may have forked since.
const maxMoveAttempts = 20

// enableForChildren enables the controller for the cgroups below dir. A cgroup of v2 with processes of its own cannot do
// that ("no internal processes"; only the machine's root may). In a container the topmost visible cgroup is such a one:
// the process that started berth runs in it, and berth too. They are moved into a cgroup below it. The error that shows them
// depends on the order of the controllers: see domainFirst.
func (h Hierarchy) enableForChildren(dir, controller string) error {
	err := enable(dir, controller)
	for try := 0; hasProcesses(err) && dir == h.Dir && try < maxMoveAttempts; try++ {
		if err := moveProcesses(dir); err != nil {
			return fmt.Errorf("move the processes of %q into a cgroup of their own: %w", dir, err)
		}
		err = enable(dir, controller)
	}
	return err
}

// hasProcesses reports whether the kernel refuses a controller because of a cgroup's own processes. If controllers of threads are
// enabled already, the error is another one.
func hasProcesses(err error) bool {
	return errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EOPNOTSUPP)
}

// moveProcesses moves the processes of a cgroup into one below it.
func moveProcesses(dir string) error {
	restore, err := disableThreaded(dir)
	if err != nil {
		return err
	}
	return errors.Join(moveAll(dir), restore())
}

// disableThreaded disables the controllers of threads that were enabled while the cgroup had processes: no process can be moved
// into a cgroup below it until then. restore enables them again.
func disableThreaded(dir string) (restore func() error, err error) {
	nothing := func() error { return nil }
	kind, err := os.ReadFile(filepath.Join(dir, "cgroup.type"))
	if errors.Is(err, os.ErrNotExist) { // the machine's root
		return nothing, nil
	}
	if err != nil || strings.TrimSpace(string(kind)) != "domain threaded" {
		return nothing, err
	}
	file := filepath.Join(dir, "cgroup.subtree_control")
	enabled, err := os.ReadFile(file)
	if err != nil || len(strings.Fields(string(enabled))) == 0 {
		return nothing, err
	}
	write := func(sign string) error {
		return os.WriteFile(file, []byte(sign+strings.Join(strings.Fields(string(enabled)), " "+sign)), 0o644)
	}
	return func() error { return write("+") }, write("-")
}

// moveAll moves the processes that a cgroup has now.
func moveAll(dir string) error {
	target := filepath.Join(dir, initCgroup)
	if err := os.Mkdir(target, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	pids, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for pid := range strings.FieldsSeq(string(pids)) {
		err := os.WriteFile(filepath.Join(target, "cgroup.procs"), []byte(pid), 0o644)
		if err != nil && !errors.Is(err, syscall.ESRCH) { // it may have ended
			return fmt.Errorf("process %s: %w", pid, err)
		}
	}
	return nil
}
