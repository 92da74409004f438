package faulttest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// execVariable makes the test's program install the filter of an [Injector] and become another program.
const execVariable = "BERTH_FAULTTEST_EXEC"

// An Injector fails one system call of a process and of everything that it starts: the nth on files below one of its directories, counted
// over all threads. The kernel asks it about each call, by a seccomp filter with a listener, so that what it fails is exact.
type Injector struct {
	// Dirs are the directories whose files count.
	Dirs []string
	// Nth is which call fails, from 1 on; 0 for none. Errno is which of the errors that the call may return, from 0 on.
	Nth, Errno int

	mu       sync.Mutex
	seen     int
	injected string
	calls    []string
}

// argument says where a system call has the file that it is about.
type argument struct {
	name string
	// fd is the number of the argument with the descriptor, -1 for none; path that of the path, which is relative to it.
	fd, path int
}

// watched are the system calls that an Injector sees.
var watched = map[int]argument{
	unix.SYS_OPENAT: {"openat", 0, 1}, unix.SYS_OPENAT2: {"openat2", 0, 1}, unix.SYS_NEWFSTATAT: {"newfstatat", 0, 1},
	unix.SYS_MKDIRAT: {"mkdirat", 0, 1}, unix.SYS_UNLINKAT: {"unlinkat", 0, 1}, unix.SYS_FCHMODAT: {"fchmodat", 0, 1},
	unix.SYS_RENAMEAT: {"renameat", 2, 3}, unix.SYS_RENAMEAT2: {"renameat2", 2, 3}, unix.SYS_LINKAT: {"linkat", 2, 3},
	unix.SYS_SYMLINKAT: {"symlinkat", 1, 2}, unix.SYS_WRITE: {"write", 0, -1}, unix.SYS_PWRITE64: {"pwrite64", 0, -1},
	unix.SYS_READ: {"read", 0, -1}, unix.SYS_PREAD64: {"pread64", 0, -1}, unix.SYS_FSYNC: {"fsync", 0, -1}, unix.SYS_FDATASYNC: {"fdatasync", 0, -1},
	unix.SYS_FTRUNCATE: {"ftruncate", 0, -1}, unix.SYS_FALLOCATE: {"fallocate", 0, -1}, unix.SYS_GETDENTS64: {"getdents64", 0, -1},
	unix.SYS_FCHMOD: {"fchmod", 0, -1}, unix.SYS_MOUNT: {"mount", -1, 1}, unix.SYS_UMOUNT2: {"umount2", -1, 0},
}

// numbers are the errors by their names.
var numbers = map[string]unix.Errno{"ENOSPC": unix.ENOSPC, "EDQUOT": unix.EDQUOT, "EIO": unix.EIO, "EROFS": unix.EROFS, "EMFILE": unix.EMFILE, "EBUSY": unix.EBUSY}

// Start starts the command under the injector. The command's Env must be set.
func (in *Injector) Start(cmd *exec.Cmd) error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make the sockets for the listener: %w", err)
	}
	theirs := os.NewFile(uintptr(ends[1]), "listener")
	defer unix.Close(ends[0])
	defer theirs.Close()
	cmd.Args = append([]string{os.Args[0], cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/proc/self/exe"
	cmd.Env = append(cmd.Env, execVariable+"="+fmt.Sprint(3+len(cmd.ExtraFiles)))
	cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
	if err := cmd.Start(); err != nil {
		return err
	}
	theirs.Close()
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(ends[0], make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return fmt.Errorf("receive the listener: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return errors.Join(errors.New("the process sent no listener: it could not install its filter"), err, cmd.Wait())
	}
	listener, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return fmt.Errorf("receive the listener: %w", err)
	}
	go in.serve(listener[0]) // it ends with the last of the processes
	return nil
}

// Injected says which call failed with which error; empty if none has yet.
func (in *Injector) Injected() string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.injected
}

// Calls returns the calls that counted.
func (in *Injector) Calls() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]string(nil), in.calls...)
}

func init() {
	fd := os.Getenv(execVariable)
	if fd == "" {
		return
	}
	runtime.LockOSThread()
	fmt.Fprintln(os.Stderr, "faulttest:", become(fd))
	os.Exit(1)
}

// become installs the filter, sends its listener through the socket, and executes the program that the arguments name.
func become(socket string) error {
	var fd int
	if _, err := fmt.Sscan(socket, &fd); err != nil {
		return err
	}
	if err := os.Unsetenv(execVariable); err != nil {
		return err
	}
	program, env := os.Args[1], os.Environ()
	filter, err := assemble()
	if err != nil {
		return err
	}
	const setModeFilter, newListener = 1, 1 << 3
	fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	listener, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, setModeFilter, newListener, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return fmt.Errorf("install a seccomp filter: %w", errno)
	}
	if err := unix.Sendmsg(fd, []byte{0}, unix.UnixRights(int(listener)), nil, 0); err != nil {
		return fmt.Errorf("send the listener: %w", err)
	}
	unix.CloseOnExec(fd)
	return unix.Exec(program, append([]string{program}, os.Args[2:]...), env)
}

// assemble returns a filter that notifies of the watched calls and allows all others.
func assemble() ([]unix.SockFilter, error) {
	const allow, notify = 0x7fff0000, 0x7fc00000
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: 0, Size: 4}}
	for number := range watched {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(number), SkipTrue: 1}, bpf.RetConstant{Val: notify})
	}
	raw, err := bpf.Assemble(append(program, bpf.RetConstant{Val: allow}))
	if err != nil {
		return nil, fmt.Errorf("assemble a seccomp filter: %w", err)
	}
	filter := make([]unix.SockFilter, len(raw))
	for i, one := range raw {
		filter[i] = unix.SockFilter{Code: one.Op, Jt: one.Jt, Jf: one.Jf, K: one.K}
	}
	return filter, nil
}

// notification and response are the kernel's struct seccomp_notif and seccomp_notif_resp.
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// serve decides about each call until no process with the filter is left.
func (in *Injector) serve(listener int) {
	defer unix.Close(listener)
	const receive, send, goOn = 0xc0502100, 0xc0182101, 1
	for {
		fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); errors.Is(err, unix.EINTR) {
			continue
		}
		if fds[0].Revents&unix.POLLIN == 0 {
			return
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), receive, uintptr(unsafe.Pointer(&n))); errno != 0 {
			continue // the thread has ended
		}
		r := response{id: n.id, flags: goOn}
		if errno := in.decide(&n); errno != 0 {
			r.flags, r.errno = 0, -int32(errno)
		}
		_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(listener), send, uintptr(unsafe.Pointer(&r))) // the thread may have ended
	}
}

// decide counts a call and returns the error that it fails with; 0 for none.
func (in *Injector) decide(n *notification) unix.Errno {
	what := watched[int(n.nr)]
	path := pathOf(n, what)
	within := false
	for _, dir := range in.Dirs {
		within = within || strings.HasPrefix(path, dir)
	}
	if !within {
		return 0
	}
	line := what.name + " " + path
	if strings.HasPrefix(what.name, "openat") && (what.name == "openat2" || n.args[2]&(unix.O_WRONLY|unix.O_RDWR|unix.O_CREAT) == 0) {
		line += " O_RDONLY"
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.seen++
	in.calls = append(in.calls, line)
	may := Errors(line)
	if in.seen != in.Nth || in.Errno >= len(may) {
		return 0
	}
	in.injected = may[in.Errno] + " at " + line
	return numbers[may[in.Errno]]
}

// pathOf returns the path of the file that a call is about; empty if that cannot be found out.
func pathOf(n *notification, what argument) string {
	proc := fmt.Sprintf("/proc/%d/", n.pid)
	dir := ""
	if what.fd >= 0 {
		if fd := int32(n.args[what.fd]); fd == unix.AT_FDCWD {
			dir, _ = os.Readlink(proc + "cwd")
		} else {
			dir, _ = os.Readlink(fmt.Sprintf("%sfd/%d", proc, fd))
		}
	}
	if what.path < 0 {
		return dir
	}
	path := readString(n.pid, n.args[what.path])
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// readString reads a string of another process.
func readString(pid uint32, address uint64) string {
	var text []byte
	for len(text) < unix.PathMax {
		// A string may end before a page that is not mapped.
		chunk := make([]byte, 256-address%256)
		n, err := unix.ProcessVMReadv(int(pid), []unix.Iovec{{Base: &chunk[0], Len: uint64(len(chunk))}},
			[]unix.RemoteIovec{{Base: uintptr(address), Len: len(chunk)}}, 0)
		if err != nil {
			return ""
		}
		for i, b := range chunk[:n] {
			if b == 0 {
				return string(append(text, chunk[:i]...))
			}
		}
		text = append(text, chunk[:n]...)
		address += uint64(n)
	}
	return string(text)
}

// Errors returns the errors that a call of [Injector.Calls] may return.
func Errors(line string) []string {
	name, _, _ := strings.Cut(line, " ")
	if name == "openat2" {
		name = "openat"
	}
	return call{name: name, line: line}.errnos()
}

// The calls between which Sweep injects faults, so that processes may share them.
var (
	from = flag.Int("fault-from", 1, "leave out the system calls before this one")
	to   = flag.Int("fault-to", 0, "leave out the system calls after this one; 0: none")
)

// Sweep calls inject with an Injector for each error of each call, of which it leaves out all but one of thin times -fault-every.
// inject reports whether the fault had any effect on the result.
func Sweep(t *testing.T, calls []string, thin int, inject func(t *testing.T, in *Injector) (failed bool)) {
	t.Helper()
	step := *every * thin
	number, injected, tolerated := 0, 0, 0
	last := len(calls)
	if *to > 0 {
		last = min(last, *to)
	}
	for nth := *from; nth <= last; nth++ {
		for errno := range Errors(calls[nth-1]) {
			if number++; number%step != 0 {
				continue
			}
			in, failed := &Injector{Nth: nth, Errno: errno}, false
			t.Run(fmt.Sprintf("%d-%d", nth, errno), func(t *testing.T) { failed = inject(t, in) })
			if in.Injected() == "" {
				continue // this time it made fewer calls
			}
			if injected++; !failed {
				tolerated++
			}
		}
	}
	t.Logf("%d of %d faults of %d system calls; %d changed no result", injected, number, len(calls), tolerated)
}

// Thin is 1 where all faults are injected (-fault-every=1), and else step.
func Thin(step int) int {
	if *every == 1 {
		return 1
	}
	return step
}
