package vm

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Machine is a virtual machine. Its methods may be called by any number of goroutines, but those that start or stop it
// only by one.
type Machine struct {
	image   *Image
	options Options
	files   files
	dir     string
	logger  *slog.Logger

	accelerator string
	machineID   string
	sshPort     int

	process *process // of the last Boot
}

// Start boots a machine that keeps its disks in dir, and waits until commands can be run in it. The caller closes it.
func Start(ctx context.Context, image *Image, dir string, options Options, logger *slog.Logger) (*Machine, error) {
	options = options.withDefaults()
	if err := options.validate(); err != nil {
		return nil, fmt.Errorf("start virtual machine %s: %w", options.Name, err)
	}
	m, err := prepare(ctx, image, dir, options, logger)
	if err == nil {
		err = m.Boot(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("start virtual machine %s: %w", options.Name, err)
	}
	return m, nil
}

// prepare makes the machine's disks.
func prepare(ctx context.Context, image *Image, dir string, options Options, logger *slog.Logger) (*Machine, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	m := &Machine{image: image, options: options, dir: dir, logger: logger.With("machine", options.Name)}
	m.accelerator = options.Accelerator
	if m.accelerator == "" {
		if m.accelerator, err = image.accelerator(ctx); err != nil {
			return nil, err
		}
	}
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	m.machineID = hex.EncodeToString(id)
	m.files = files{
		kernel: filepath.Join(image.dir, kernelFile), initrd: filepath.Join(image.dir, initrdFile),
		root: filepath.Join(dir, "root.qcow2"), console: options.ConsoleLog,
		ready: filepath.Join(dir, "ready.sock"), qmp: filepath.Join(dir, "qmp.sock"),
	}
	if m.files.console == "" {
		m.files.console = filepath.Join(dir, "console.log")
	}
	if options.Network != nil {
		m.files.networkSocket, m.files.networkMAC = options.Network.path, options.Network.nextMAC()
	}
	if err := m.makeRoot(ctx); err != nil {
		return nil, err
	}
	for i, size := range options.DisksGiB {
		path := filepath.Join(dir, "disk"+strconv.Itoa(i+1)+".img")
		if err := command(ctx, "truncate", "-s", strconv.Itoa(size)+"G", path); err != nil {
			return nil, err
		}
		m.files.disks = append(m.files.disks, path)
	}
	var group errgroup.Group
	for i, share := range options.Shares {
		path := share.Disk
		if path == "" {
			path = filepath.Join(dir, "share"+strconv.Itoa(i+1)+".img")
			group.Go(func() error { return share.makeDisk(ctx, path) })
		}
		m.files.shares = append(m.files.shares, path)
	}
	return m, group.Wait()
}

// makeRoot makes the machine's root disk.
func (m *Machine) makeRoot(ctx context.Context) error {
	if m.options.Root != "" {
		return command(ctx, "cp", "--sparse=always", m.options.Root, m.files.root)
	}
	return command(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", filepath.Join(m.image.dir, rootFile), m.files.root)
}

// SaveRoot copies the root disk of a machine that is off to a file, for Options.Root of another one.
func (m *Machine) SaveRoot(ctx context.Context, path string) error {
	part := path + ".part"
	if err := command(ctx, "cp", "--sparse=always", m.files.root, part); err != nil {
		return fmt.Errorf("save the disk of virtual machine %s: %w", m.options.Name, errors.Join(err, os.RemoveAll(part)))
	}
	return os.Rename(part, path)
}

// An emulated machine may hang while it boots: qemu 7.2 with thread=multi can lose the kernel's change of an instruction that several
// CPUs run at that moment, and these trap for ever. It is booted again then.
const (
	bootLimit    = 4 * time.Minute // a busy host of two CPUs boots eight in one
	bootAttempts = 3
)

var errHung = fmt.Errorf("it was not ready after %v", bootLimit)

// Boot starts a machine that is stopped, with the disks that it has, and waits until commands can be run in it.
func (m *Machine) Boot(ctx context.Context) error {
	began := time.Now()
	err := m.bootOnce(ctx)
	for attempt := 1; attempt < bootAttempts && errors.Is(err, errHung); attempt++ {
		m.logger.Warn("virtual machine hangs; booting it again", "after", bootLimit, "console", m.files.console)
		err = m.bootOnce(ctx)
	}
	if err != nil {
		return err
	}
	for i, share := range m.options.Shares {
		script := fmt.Sprintf("mkdir -p %[1]s && mount -o ro %[2]s %[1]s", quote(share.Path), shareDisk(i))
		if err := m.mustRun(ctx, script); err != nil {
			return errors.Join(fmt.Errorf("mount %s: %w", share.Path, err), m.PowerCut())
		}
	}
	m.logger.Info("virtual machine is ready", "accelerator", m.accelerator, "after", time.Since(began).Round(time.Millisecond))
	return nil
}

func (m *Machine) bootOnce(ctx context.Context) error {
	// The socket is there before qemu is, so that the machine's report cannot be missed.
	if err := os.Remove(m.files.ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", m.files.ready)
	if err != nil {
		return err
	}
	defer listener.Close()
	if m.sshPort, err = freePort(); err != nil {
		return err
	}
	if m.options.WriteLog != "" {
		if err := os.WriteFile(m.options.WriteLog, nil, 0o600); err != nil { // qemu opens a file that exists
			return err
		}
	}
	var tsc uint64
	if m.accelerator != accelKVM {
		tsc = tscKHz()
	}
	args := qemuArgs(m.options, m.files, m.accelerator, m.sshPort, m.machineID, tsc)
	if m.process, err = startProcess(qemu, args); err != nil {
		return err
	}
	if err := m.waitReady(ctx, listener); err != nil {
		return errors.Join(err, m.PowerCut())
	}
	return nil
}

// waitReady waits for the line that the machine's last unit writes.
func (m *Machine) waitReady(ctx context.Context, listener net.Listener) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bootLimit, errHung)
	defer cancel()
	ready := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			err = errors.Join(err, conn.Close())
		}
		if !errors.Is(err, io.EOF) { // then qemu ends, which says why
			ready <- err
		}
	}()
	select {
	case err := <-ready:
		return err
	case <-m.process.done:
		return fmt.Errorf("qemu ended: %w\n%s", m.process.err, m.process.output.String())
	case <-ctx.Done():
		return fmt.Errorf("not ready; its console is in %s: %w", m.files.console, context.Cause(ctx))
	}
}

// PowerCut ends the machine as a power failure does, without notice. Its disks keep what it wrote to them.
func (m *Machine) PowerCut() error {
	if m.process == nil {
		return nil
	}
	return m.process.kill()
}

// Shutdown presses the power button and waits until the machine is off.
func (m *Machine) Shutdown(ctx context.Context) error {
	if err := m.qmp(ctx, "system_powerdown"); err != nil {
		return fmt.Errorf("shut down virtual machine %s: %w", m.options.Name, err)
	}
	return m.waitOff(ctx)
}

// Reboot has the machine's own systemd reboot it, and waits until commands can be run in it again.
func (m *Machine) Reboot(ctx context.Context) error {
	if err := m.mustRun(ctx, "systemctl reboot"); err != nil {
		return err
	}
	// qemu ends with the system that it runs, also if that one reboots.
	if err := m.waitOff(ctx); err != nil {
		return err
	}
	return m.Boot(ctx)
}

func (m *Machine) waitOff(ctx context.Context) error {
	select {
	case <-m.process.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("virtual machine %s is still on: %w", m.options.Name, context.Cause(ctx))
	}
}

// Close ends the machine. Its directory stays.
func (m *Machine) Close() error { return m.PowerCut() }

// ConsoleLog is the file with what the machine wrote to its console.
func (m *Machine) ConsoleLog() string { return m.files.console }

// qmp runs a command of qemu's machine protocol that has no arguments.
func (m *Machine) qmp(ctx context.Context, name string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", m.files.qmp)
	if err != nil {
		return err
	}
	defer conn.Close()
	decoder, encoder := json.NewDecoder(conn), json.NewEncoder(conn)
	var greeting map[string]any
	if err := decoder.Decode(&greeting); err != nil {
		return err
	}
	for _, execute := range []string{"qmp_capabilities", name} {
		if err := encoder.Encode(map[string]string{"execute": execute}); err != nil {
			return err
		}
		var reply struct{ Error json.RawMessage }
		if err := decoder.Decode(&reply); err != nil {
			return err
		}
		if reply.Error != nil {
			return fmt.Errorf("qemu refuses %s: %s", execute, reply.Error)
		}
	}
	return nil
}

// process is a qemu that ends with this process.
type process struct {
	cmd    *exec.Cmd
	output tail
	done   chan struct{} // closed when it has ended
	err    error         // how; read it after done
}

func startProcess(name string, args []string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	// A terminal's Ctrl-C is for this process, which ends the machine when it has done what it must.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread that started the process ends, so the thread has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.done)
		}
	}()
	return p, <-started
}

func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	data []byte
}

const tailSize = 8 << 10

func (t *tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, data...)
	if extra := len(t.data) - tailSize; extra > 0 {
		t.data = t.data[extra:]
	}
	return len(data), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}

var _ io.Writer = (*tail)(nil)

// command runs a program of the host.
func command(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// freePort returns a TCP port of loopback that is free now.
func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return listener.Addr().(*net.TCPAddr).Port, listener.Close()
}
