package isolate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// namespaces are those that a cluster has of its own. Of the IPC namespace hostIPC Pods would leave objects on the machine,
// and privileged Pods with the host's network could rename it.
const namespaces = unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// Launch runs the cluster in new namespaces until it ends, and returns its exit code. SIGINT, SIGTERM and SIGHUP are forwarded
// to it.
func (c Config) Launch(ctx context.Context) (code int, err error) {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup, which Notify would override
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Ignore(syscall.SIGPIPE) // the cluster runs on when the reader of its output is gone
	// Programs get copies of those that are theirs, and nothing of the others: what runs has no socket open that is not its own.
	for _, inherited := range []int{c.Lock, c.Listener, c.Page} {
		if inherited != 0 {
			unix.CloseOnExec(inherited)
		}
	}
	// This process holds the lock until it has removed what the cluster leaves.
	lock := os.NewFile(uintptr(c.Lock), "lock")
	defer lock.Close()
	link, err := c.newLink()
	if err != nil {
		return 1, errors.Join(err, c.removeNewDataDir())
	}
	defer link.close(ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, control, err := c.startInit(lock)
	if err != nil {
		return 1, errors.Join(err, c.removeNewDataDir())
	}
	ended := make(chan int, 1)
	go func() { ended <- wait(first) }()
	if err := c.connect(ctx, link, first.Process.Pid, control); err != nil {
		// The first process ends with its control socket. If it has failed, it has said why.
		_ = control.Close()
		if code := <-ended; code != 0 {
			err = nil
		}
		return 1, errors.Join(err, c.release(ctx), c.removeNewDataDir())
	}
	code = forward(first.Process, control, signals, ended)
	return code, errors.Join(c.removeLink(link), control.Close(), c.release(ctx), c.removeNewDataDir())
}

// forward forwards signals to the first process until it ends, and returns its exit code. The kernel drops signals to the first process
// of a PID namespace that has no handler for them, so they wait until it has.
func forward(first *os.Process, control io.Reader, signals <-chan os.Signal, ended <-chan int) (code int) {
	_, _ = control.Read(make([]byte, len(handlersSet))) // it returns, too, when the first process has ended
	for {
		select {
		case came := <-signals:
			_ = first.Signal(came) // it may have ended
		case code := <-ended:
			return code
		}
	}
}

// handlersSet is what the first process writes to its control socket when it receives signals.
const handlersSet = "!"

// startInit starts the first process of the namespaces. It waits for the link's address on the control socket.
func (c Config) startInit(lock *os.File) (first *exec.Cmd, control *os.File, err error) {
	program, err := os.Executable()
	if err != nil {
		return nil, nil, fmt.Errorf("find the program %s: %w", Program, err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make the control sockets: %w", err)
	}
	control, theirs := os.NewFile(uintptr(ends[0]), "control"), os.NewFile(uintptr(ends[1]), "control")
	defer theirs.Close()
	listener := os.NewFile(uintptr(c.Listener), "listener")
	defer listener.Close() // connections are accepted by the cluster alone
	inner, files := c, []*os.File{lock, listener}
	inner.Init, inner.Lock, inner.Listener, inner.Control = true, insideLock, insideListener, insidePage
	if c.Page != 0 {
		page := os.NewFile(uintptr(c.Page), "page")
		defer page.Close()
		files = append(files, page)
		inner.Page, inner.Control = insidePage, insidePage+1
	}
	files = append(files, theirs)
	if !c.UserNamespace {
		machine, err := os.Open("/proc/self/ns/net")
		if err != nil {
			return nil, nil, errors.Join(fmt.Errorf("open the machine's network namespace: %w", err), control.Close())
		}
		defer machine.Close()
		files = append(files, machine)
		inner.Network = inner.Control + 1
	}
	first = exec.Command(program, inner.Args()...)
	first.Stdin, first.Stdout, first.Stderr = os.Stdin, os.Stdout, os.Stderr
	first.ExtraFiles = files
	// A process group of its own, so that Ctrl-C on the terminal reaches this process alone, which forwards it.
	first.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
	if c.UserNamespace {
		first.SysProcAttr = UserNamespace()
	}
	first.SysProcAttr.Setpgid = true
	if err := first.Start(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start the cluster in namespaces of its own: %w", err), control.Close())
	}
	return first, control, nil
}

// connect connects the namespaces to the machine's network and lets the cluster start.
func (c Config) connect(ctx context.Context, link *link, pid int, control io.Writer) error {
	if !c.UserNamespace {
		if err := link.create(pid); err != nil {
			return err
		}
		if !c.WithoutFirewall {
			link.passFirewall(ctx)
		}
		if err := link.relay(ctx, pid, c.Resolvers); err != nil {
			return err
		}
	}
	if err := json.NewEncoder(control).Encode(link.inside); err != nil {
		return fmt.Errorf("report the link's addresses to the first process of the namespaces: %w", err)
	}
	return nil
}

// wait waits for a process and returns its exit code, which is 128 plus the signal's number if a signal ended it.
func wait(cmd *exec.Cmd) int {
	err := cmd.Wait()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exitCode(unix.WaitStatus(exit.Sys().(syscall.WaitStatus)))
	default:
		log("wait for the cluster: %v", err)
		return 1
	}
}

func exitCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}

// removeNewDataDir removes a data directory that was created for this start, if it has no cluster.
func (c Config) removeNewDataDir() error {
	if !c.NewDataDir {
		return nil
	}
	return RemoveUninitialized(c.DataDir)
}

// RemoveUninitialized removes a data directory that has nothing but files of this package; others stay.
func RemoveUninitialized(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the data directory of a cluster that did not start: %w", err)
	}
	if slices.ContainsFunc(entries, func(entry os.DirEntry) bool { return !IsOwnFile(entry.Name()) }) {
		return nil
	}
	var errs []error
	for _, entry := range entries {
		errs = append(errs, ignoreAbsent(os.Remove(filepath.Join(dir, entry.Name()))))
	}
	if err := errors.Join(append(errs, ignoreAbsent(os.Remove(dir)))...); err != nil {
		return fmt.Errorf("remove the data directory of a cluster that did not start: %w", err)
	}
	return nil
}

// LockName is the name of the lock file in a data directory.
const LockName = "lock"

// IsOwnFile reports whether a name in a data directory is of this package, which makes its files before the cluster has any.
func IsOwnFile(name string) bool { return name == LockName || name == listenSocket }

func ignoreAbsent(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
