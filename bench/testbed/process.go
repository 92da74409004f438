package testbed

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const stopTimeout = 20 * time.Second

// Process is a program that the test bed has started.
type Process struct {
	// PID is its process id.
	PID int

	name   string
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // set before ended is closed
	log    string
}

// start starts a program whose standard error goes to logDir/NAME.log. Each line of its standard output goes to line,
// if given. It ends with Stop, and with this process. It does not end with ctx: what a benchmark that is broken off has
// to clear away can only be cleared away by what runs.
func start(ctx context.Context, logDir, name string, argv, env []string, line func(string)) (*Process, error) {
	path := filepath.Join(logDir, name+".log")
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr, cmd.Stdout = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	var out io.ReadCloser
	if line != nil {
		cmd.Stdout = nil
		if out, err = cmd.StdoutPipe(); err != nil {
			cancel()
			return nil, errors.Join(err, log.Close())
		}
	}
	p := &Process{name: name, cancel: cancel, ended: make(chan struct{}), log: path}
	started := make(chan error)
	go p.run(cmd, log, out, line, started)
	if err := <-started; err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.PID = cmd.Process.Pid
	return p, nil
}

// startAndWait starts a program and returns when a line of its standard output shows that it is ready.
func startAndWait(ctx context.Context, logDir, name string, argv []string, isReady func(line string) bool) (*Process, error) {
	ready := make(chan struct{})
	report := sync.OnceFunc(func() { close(ready) })
	p, err := start(ctx, logDir, name, argv, nil, func(line string) {
		if isReady(line) {
			report()
		}
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-ready:
		return p, nil
	case <-p.ended:
		return nil, p.earlyExit()
	case <-ctx.Done():
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, context.Cause(ctx)), p.Stop())
	}
}

// run runs the program on a thread of its own: the signal that ends it with its parent follows the thread.
func (p *Process) run(cmd *exec.Cmd, log *os.File, out io.Reader, line func(string), started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.ended)
	if err := cmd.Start(); err != nil {
		started <- errors.Join(err, log.Close())
		return
	}
	started <- nil
	if line != nil {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line(lines.Text())
		}
	}
	p.err = errors.Join(cmd.Wait(), log.Close())
}

// Stop stops the program, and kills it if it does not end.
func (p *Process) Stop() error {
	p.cancel()
	<-p.ended
	return nil // its exit code does not matter after a stop
}

// earlyExit returns an error if the program has ended.
func (p *Process) earlyExit() error {
	select {
	case <-p.ended:
		return fmt.Errorf("%s ended: %w: %s", p.name, errors.Join(p.err, errors.New("not asked to")), lastLines(p.log))
	default:
		return nil
	}
}

// lastLines is the end of a log file.
func lastLines(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}

// Usage is what a process has used.
type Usage struct {
	// CPU is its user and system time so far.
	CPU time.Duration
	// RSS is its resident memory in bytes, at present.
	RSS int64
	// Private is the part of RSS that is not the program's file, which the kernel can drop and read again.
	Private int64
}

// clockTicks is the unit of times in /proc, the same on every Linux of Go's.
const clockTicks = 100

// MachineCPU is the CPU time that the machine has spent on all processes and on interrupts since it booted.
func MachineCPU() (time.Duration, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read CPU time of the machine: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	fields := strings.Fields(line)
	const user, nice, system, irq, softirq = 1, 2, 3, 6, 7
	if len(fields) <= softirq || fields[0] != "cpu" {
		return 0, fmt.Errorf("read CPU time of the machine: line %q", line)
	}
	var sum int64
	for _, at := range []int{user, nice, system, irq, softirq} {
		ticks, err := strconv.ParseInt(fields[at], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read CPU time of the machine: %w", err)
		}
		sum += ticks
	}
	return time.Duration(sum) * time.Second / clockTicks, nil
}

// UsageOf reads what a process has used.
func UsageOf(pid int) (Usage, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return Usage{}, fmt.Errorf("read usage of process %d: %w", pid, err)
	}
	// The name, in brackets, may hold blanks; the fields after it count from the third.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const utime, stime = 14 - 3, 15 - 3
	if len(fields) <= stime {
		return Usage{}, fmt.Errorf("read usage of process %d: %d fields", pid, len(fields))
	}
	var ticks [2]int64
	for i, at := range []int{utime, stime} {
		if ticks[i], err = strconv.ParseInt(fields[at], 10, 64); err != nil {
			return Usage{}, fmt.Errorf("read usage of process %d: %w", pid, err)
		}
	}
	usage := Usage{CPU: time.Duration(ticks[0]+ticks[1]) * time.Second / clockTicks}
	usage.RSS, usage.Private, err = memoryOf(pid)
	return usage, err
}

// memoryOf reads the memory of a process, in bytes.
func memoryOf(pid int) (rss, private int64, err error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, 0, fmt.Errorf("read memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 || (name != "VmRSS" && name != "RssAnon") {
			continue
		}
		kib, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("read memory of process %d: %w", pid, err)
		}
		if name == "VmRSS" {
			rss = kib << 10
		} else {
			private = kib << 10
		}
	}
	return rss, private, nil
}
