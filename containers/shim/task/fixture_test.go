package task

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	api "github.com/containerd/containerd/api/runtime/task/v3"
	eventservice "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-dev/berth/containers/shim/events"
	"github.com/berth-dev/berth/containers/shim/reaper"
	_ "github.com/berth-dev/berth/containers/shim/runcinit" // containers start the test's own program
)

// waitTimeout bounds every wait of these tests.
const waitTimeout = 2 * time.Minute

// mainOrphans is run by TestMain on the main thread, as the shim does.
var mainOrphans *reaper.Orphans

func init() {
	if os.Getenv("SHIM_TEST_SLEEP") != "" { // run by TestOwnProgramIsOutOfReach in a container
		time.Sleep(waitTimeout)
		os.Exit(0)
	}
	runtime.LockOSThread()
}

func TestMain(m *testing.M) {
	orphans, err := reaper.NewOrphans()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	mainOrphans = orphans
	ctx, cancel := context.WithCancel(context.Background())
	code := make(chan int, 1)
	go func() {
		code <- m.Run()
		cancel()
	}()
	orphans.Run(ctx)
	os.Exit(<-code)
}

// fixture is a service with a stand-in for containerd that keeps the events.
type fixture struct {
	*Service
	dir, root string

	mu     sync.Mutex
	events []string
	change chan struct{}
}

// Forward is containerd's.
func (f *fixture) Forward(_ context.Context, r *eventservice.ForwardRequest) (*emptypb.Empty, error) {
	event, err := typeurl.UnmarshalAny(r.Envelope.Event)
	if err != nil {
		return nil, err
	}
	text := r.Envelope.Topic
	if with, ok := event.(interface{ GetID() string }); ok {
		text += " " + with.GetID()
	}
	f.mu.Lock()
	f.events = append(f.events, text)
	close(f.change)
	f.change = make(chan struct{})
	f.mu.Unlock()
	return &emptypb.Empty{}, nil
}

// waitEvent waits for an event, and returns all so far.
func (f *fixture) waitEvent(t *testing.T, want string) []string {
	t.Helper()
	timeout := time.After(waitTimeout)
	for {
		f.mu.Lock()
		all, change := append([]string(nil), f.events...), f.change
		f.mu.Unlock()
		for _, event := range all {
			if event == want {
				return all
			}
		}
		select {
		case <-change:
		case <-timeout:
			t.Fatalf("no event %q, but %q", want, all)
		}
	}
}

func newFixture(t *testing.T) *fixture {
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	dir, err := os.MkdirTemp("/run", "shim-test-") // short, for the socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = os.RemoveAll(dir)
		for _, cgroup := range cgroupsOf(filepath.Base(dir)) {
			_ = os.Remove(cgroup)
		}
	})
	f := &fixture{dir: dir, root: filepath.Join(dir, "runc"), change: make(chan struct{})}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	eventservice.RegisterTTRPCEventsService(server, f)
	listener, err := net.Listen("unix", filepath.Join(dir, "events"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(context.Background(), listener) }()
	publisher := events.New(listener.Addr().String(), "test")
	ctx, cancel := context.WithCancel(context.Background())
	sent := make(chan struct{})
	go func() { defer close(sent); publisher.Run(ctx) }()
	t.Cleanup(func() {
		publisher.Close()
		<-sent
		cancel()
		_ = server.Close()
	})
	f.Service, err = New(ctx, Deps{Orphans: mainOrphans, Publisher: publisher, Shutdown: func() {}}, "test")
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// change changes the specification of a container before it is created.
type change func(*specs.Spec)

func withoutPIDNamespace(s *specs.Spec) {
	s.Linux.Namespaces = s.Linux.Namespaces[1:]
}

func withMemoryLimit(limit int64) change {
	return func(s *specs.Spec) { s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &limit, Swap: &limit} }
}

// specOf is a container whose root is the machine's, without its mounts, read-only.
func (f *fixture) specOf(id string, args []string) *specs.Spec {
	capabilities := []string{"CAP_KILL", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_SETUID", "CAP_SETGID"}
	return &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			Args: args, Cwd: "/", Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm"},
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Root: &specs.Root{Path: "rootfs", Readonly: true},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"ro"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "/" + filepath.Base(f.dir) + "/" + id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			},
			Resources: &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}},
		},
	}
}

// streams are the FIFOs of a process, as containerd makes them.
type streams struct {
	stdin, stdout, stderr string
	in                    *os.File
	out, err              chan string
}

func (f *fixture) streams(t *testing.T, name string) *streams {
	s := &streams{out: make(chan string, 1), err: make(chan string, 1)}
	for _, one := range []struct {
		path *string
		kind string
	}{{&s.stdin, "in"}, {&s.stdout, "out"}, {&s.stderr, "err"}} {
		*one.path = filepath.Join(f.dir, name+"-"+one.kind)
		if err := unix.Mkfifo(*one.path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if s.in, err = os.OpenFile(s.stdin, os.O_RDWR, 0); err != nil {
		t.Fatal(err)
	}
	for path, to := range map[string]chan string{s.stdout: s.out, s.stderr: s.err} {
		file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // before the shim, as containerd does
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = file.Close() })
		go func() {
			defer file.Close()
			waitWriter(file)
			data, _ := io.ReadAll(file)
			to <- string(data)
		}()
	}
	t.Cleanup(func() { _ = s.in.Close() })
	return s
}

// waitWriter waits until a FIFO has been opened for writing: before, reading returns its end.
func waitWriter(fifo *os.File) {
	conn, err := fifo.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Read(func(fd uintptr) bool {
		ready, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return ready > 0
	})
}

func receive(t *testing.T, from chan string) string {
	t.Helper()
	select {
	case text := <-from:
		return text
	case <-time.After(waitTimeout):
		t.Fatal("the output has no end")
		return ""
	}
}

// create creates a container and does not start it.
func (f *fixture) create(t *testing.T, id string, terminal bool, s *streams, args []string, changes ...change) error {
	t.Helper()
	bundle := filepath.Join(f.dir, id)
	spec := f.specOf(id, args)
	for _, change := range changes {
		change(spec)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(bundle, 0o711); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	encoded, err := typeurl.MarshalAnyToProto(&options.Options{Root: f.root})
	if err != nil {
		t.Fatal(err)
	}
	request := &api.CreateTaskRequest{
		ID: id, Bundle: bundle, Terminal: terminal, Options: encoded,
		Rootfs: []*types.Mount{{Type: "bind", Source: "/", Options: []string{"bind", "ro"}}},
	}
	if s != nil {
		request.Stdin, request.Stdout, request.Stderr = s.stdin, s.stdout, s.stderr
	}
	_, err = f.Create(t.Context(), request)
	t.Cleanup(func() { f.end(id) })
	return err
}

// end kills and deletes a container if it is there.
func (f *fixture) end(id string) {
	ctx := context.Background()
	if _, err := f.Kill(ctx, &api.KillRequest{ID: id, Signal: uint32(unix.SIGKILL)}); err == nil {
		_, _ = f.Wait(ctx, &api.WaitRequest{ID: id})
	}
	_, _ = f.Delete(ctx, &api.DeleteRequest{ID: id})
	for _, dir := range cgroupsOf(filepath.Base(f.dir)) {
		_ = os.Remove(dir)
	}
}

func cgroupsOf(name string) []string {
	v1, _ := filepath.Glob("/sys/fs/cgroup/*/" + name)
	v2, _ := filepath.Glob("/sys/fs/cgroup/" + name)
	return append(v1, v2...)
}

func (f *fixture) run(t *testing.T, id string, s *streams, args []string, changes ...change) {
	t.Helper()
	if err := f.create(t, id, false, s, args, changes...); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Start(t.Context(), &api.StartRequest{ID: id}); err != nil {
		t.Fatal(err)
	}
}

// exec starts an exec.
func (f *fixture) exec(t *testing.T, id, execID string, terminal bool, s *streams, args ...string) error {
	t.Helper()
	process := f.specOf(id, args).Process
	process.Terminal = terminal
	return f.execProcess(t, id, execID, s, process)
}

// execProcess starts an exec of a process.
func (f *fixture) execProcess(t *testing.T, id, execID string, s *streams, process *specs.Process) error {
	t.Helper()
	data, err := json.Marshal(process)
	if err != nil {
		t.Fatal(err)
	}
	request := &api.ExecProcessRequest{ID: id, ExecID: execID, Terminal: process.Terminal, Spec: &anypb.Any{Value: data}}
	if s != nil {
		request.Stdin, request.Stdout, request.Stderr = s.stdin, s.stdout, s.stderr
	}
	if _, err := f.Exec(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	_, err = f.Start(t.Context(), &api.StartRequest{ID: id, ExecID: execID})
	return err
}

// wait returns the exit code of a process.
func (f *fixture) wait(t *testing.T, id, execID string) uint32 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	response, err := f.Wait(ctx, &api.WaitRequest{ID: id, ExecID: execID})
	if err != nil {
		t.Fatal(err)
	}
	return response.ExitStatus
}

// runc runs the program on the containers' state.
func (f *fixture) runc(t *testing.T, args ...string) string {
	t.Helper()
	program, err := filepath.Abs("../../../bin/runc")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		t.Skipf("not built, run make build: %v", err)
	}
	out, err := exec.Command(program, append([]string{"--root", filepath.Join(f.root, "test")}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("runc %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// eventually waits until f returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}
