package up

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/internal/pidfile"
	"github.com/berth-dev/berth/up/removal"
)

// program is a child process of the cluster.
type program struct {
	name string
	argv []string
	env  []string
	// files are inherited as the descriptors from 3 on.
	files []*os.File
	// logFile gets standard error, and standard output unless line is set.
	logFile string
	// pidFile identifies the running process, so that the next start can stop it if this process was killed.
	pidFile string
	// onLine gets every line of standard output, from one goroutine.
	onLine func(line []byte)
	// stopSignal is the signal that stops the program; SIGTERM if zero.
	stopSignal syscall.Signal
}

// run starts the program and waits until it exits. When ctx is done it sends the stop signal, and SIGKILL after
// removal.StopTimeout. If this process dies, the kernel sends the stop signal.
func (p program) run(ctx context.Context) error {
	logFile, err := os.OpenFile(p.logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", p.name, err)
	}
	defer logFile.Close()

	// The parent-death signal follows the thread that forked, so this thread must live as long as the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	cmd := exec.CommandContext(ctx, p.argv[0], p.argv[1:]...)
	cmd.Env = append(cleanEnvironment(os.Environ()), p.env...)
	cmd.ExtraFiles = p.files
	cmd.Stderr = logFile
	cmd.Stdout = logFile
	if p.onLine != nil {
		cmd.Stdout = &lineWriter{onLine: p.onLine}
	}
	// A process group of its own, so that Ctrl-C on the terminal reaches only berth, which then stops everything in order.
	end := cmp.Or(p.stopSignal, syscall.SIGTERM)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: end}
	cmd.Cancel = func() error { return cmd.Process.Signal(end) }
	cmd.WaitDelay = removal.StopTimeout
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	if err := pidfile.Write(p.pidFile, cmd.Process.Pid); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	err = cmd.Wait()
	if removeErr := os.Remove(p.pidFile); removeErr != nil && !errors.Is(removeErr, fs.ErrNotExist) {
		return errors.Join(err, removeErr)
	}
	if ctx.Err() != nil {
		return nil // it was stopped
	}
	if err == nil {
		err = errors.New("exit status 0")
	}
	return fmt.Errorf("%s exited unexpectedly (%w): %s", p.name, err, lastLine(p.logFile))
}

// lineWriter splits its input into lines.
type lineWriter struct {
	onLine func(line []byte)
	rest   []byte
}

func (w *lineWriter) Write(data []byte) (int, error) {
	w.rest = append(w.rest, data...)
	for {
		end := bytes.IndexByte(w.rest, '\n')
		if end < 0 {
			return len(data), nil
		}
		w.onLine(w.rest[:end])
		w.rest = w.rest[end+1:]
	}
}

// lastLine returns the line of a log that says why the program exited.
func lastLine(path string) string {
	const tail = 64 << 10 // a crash of a Go program prints its cause first, and then the stacks of many goroutines
	file, err := os.Open(path)
	if err != nil {
		return "no log: " + err.Error()
	}
	defer file.Close()
	if info, err := file.Stat(); err == nil && info.Size() > tail {
		if _, err := file.Seek(-tail, io.SeekEnd); err != nil {
			return "see " + path
		}
	}
	data, err := io.ReadAll(file)
	if err != nil {
		return "see " + path
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	last := lines[len(lines)-1]
	for _, line := range slices.Backward(lines) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			last = line
			break
		}
		if !isStackLine(line) {
			break // earlier crashes belong to earlier runs
		}
	}
	return fmt.Sprintf("%s (see %s)", last, path)
}

// isStackLine reports whether the line may be one of the stacks that follow the cause of a Go program's crash.
func isStackLine(line string) bool {
	return line == "" || strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "goroutine ") ||
		strings.HasPrefix(line, "created by ") || strings.HasPrefix(line, "[signal ") || strings.HasSuffix(line, ")")
}

// The names of pid files end with pidSuffix; those of an isolated cluster's processes with insidePIDSuffix, because an ID means
// nothing outside of the cluster's PID namespace.
const (
	pidSuffix       = ".pid"
	insidePIDSuffix = ".inside-pid"
)

// pidFile is the file with the PID of a process of the cluster.
func (c *Cluster) pidFile(process string) string {
	if c.config.Inside != nil {
		return filepath.Join(c.RunDir, process+insidePIDSuffix)
	}
	return filepath.Join(c.RunDir, process+pidSuffix)
}

// stopStale stops the processes that an earlier run of this cluster left behind, and returns their names. It kills
// containerd: see containerd.StopSignal.
func stopStale(ctx context.Context, runDir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(runDir, "*"+pidSuffix))
	if err != nil {
		return nil, err
	}
	var ended []string
	for _, file := range files {
		if pid := pidfile.Running(pidfile.Proc, file); pid != 0 {
			name, end := strings.TrimSuffix(filepath.Base(file), pidSuffix), removal.StopProcess
			if name == containerdName {
				end = removal.KillProcess
			}
			if err := end(ctx, pid); err != nil {
				return ended, err
			}
			ended = append(ended, name)
		}
		if err := os.Remove(file); err != nil {
			return ended, fmt.Errorf("remove a pid file of an earlier run: %w", err)
		}
	}
	return ended, nil
}
