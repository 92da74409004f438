package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/internal/contain"
)

const (
	// criNamespace is the containerd namespace of CRI.
	criNamespace = "k8s.io"
	// shimTimeout bounds one call to a shim; a shim that hangs must not delay containerd's start.
	shimTimeout = 2 * time.Second
	// maxConcurrentShims bounds the number of concurrent calls to shims.
	maxConcurrentShims = 16
)

// bundles is the directory in which containerd keeps a bundle for each task, by the container's id. One is made before
// its shim is started, and removed after the shim has ended: containerd knows no shim without one.
func (c Config) bundles() string {
	return filepath.Join(c.State(), "io.containerd.runtime.v2.task", criNamespace)
}

// shimWatch reads the exits of containers from their shims while containerd is down.
type shimWatch struct {
	record func(id string, code uint32, finished time.Time)
	logger *slog.Logger
	cancel context.CancelFunc

	mu      sync.Mutex // guards waiting
	pending map[string]*pendingExit
	running sync.WaitGroup
}

// pendingExit is a container whose shim will report its exit.
type pendingExit struct {
	// pid is that of its first process.
	pid int
	// done is closed when its exit is recorded, or cannot be known any more.
	done chan struct{}
}

// waitRecorded waits until the container's exit is recorded, if its process has exited. It checks the process itself,
// because the shim would run a program for that.
func (w *pendingExit) waitRecorded(ctx context.Context) error {
	if unix.Kill(w.pid, 0) == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, shimTimeout)
	defer cancel()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the shim to report the exit of process %d: %w", w.pid, ctx.Err())
	}
}

// watchShims reads the state of each shim of config's containerd, and keeps waiting for the exits of running containers
// until finish or stop. It returns when it has read all of them once.
func watchShims(ctx context.Context, config Config, record func(string, uint32, time.Time), logger *slog.Logger) *shimWatch {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &shimWatch{record: record, logger: logger, cancel: cancel, pending: make(map[string]*pendingExit)}
	paths, _ := filepath.Glob(filepath.Join(config.bundles(), "*", "bootstrap.json")) // the pattern is right
	var asking errgroup.Group
	asking.SetLimit(maxConcurrentShims)
	for _, path := range paths {
		id := filepath.Base(filepath.Dir(path))
		if !config.hasContainer(id) {
			continue // a sandbox: its exit code is not used
		}
		asking.Go(contain.Func("containerd.watchShims", "", func() error {
			if err := w.watchContainer(ctx, lasting, id, path); err != nil {
				logger.Warn("shim did not report its container's state", "container", id, "error", err)
			}
			return nil
		}))
	}
	_ = asking.Wait() // each has logged its error
	return w
}

// watchContainer reads one container's state from its shim, and returns when the container runs or its exit is recorded.
func (w *shimWatch) watchContainer(ctx, lasting context.Context, id, bootstrap string) error {
	client, err := dialShim(ctx, bootstrap)
	if err != nil {
		return err
	}
	shim := taskapi.NewTTRPCTaskClient(client)
	bounded, cancel := context.WithTimeout(ctx, shimTimeout)
	defer cancel()
	task, err := shim.Connect(bounded, &taskapi.ConnectRequest{ID: id})
	if err != nil || task.TaskPid == 0 { // 0: the shim has no such container
		return errors.Join(err, client.Close())
	}
	one := &pendingExit{pid: int(task.TaskPid), done: make(chan struct{})}
	w.mu.Lock()
	w.pending[id] = one
	w.mu.Unlock()
	w.running.Go(contain.Guard("containerd.watchContainer", "", func() {
		defer client.Close()
		defer close(one.done)
		if ended, err := shim.Wait(lasting, &taskapi.WaitRequest{ID: id}); err == nil {
			w.record(id, ended.ExitStatus, ended.ExitedAt.AsTime())
		}
	}))
	return one.waitRecorded(ctx)
}

// finish waits for the exits of containers that containerd has meanwhile deleted in their shims, and stops the watch.
func (w *shimWatch) finish(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var asking errgroup.Group
	for id, one := range w.pending {
		asking.Go(contain.Func("containerd.finish", "", func() error {
			if err := one.waitRecorded(ctx); err != nil {
				w.logger.Warn("lost the exit code of a container", "container", id, "error", err)
			}
			return nil
		}))
	}
	_ = asking.Wait() // each has logged its error
	w.stop()
}

// stop stops the watch.
func (w *shimWatch) stop() {
	w.cancel()
	w.running.Wait()
}

// dialShim connects to the shim that a bundle's bootstrap.json names.
func dialShim(ctx context.Context, bootstrap string) (*ttrpc.Client, error) {
	data, err := os.ReadFile(bootstrap)
	if err != nil {
		return nil, fmt.Errorf("find a shim: %w", err)
	}
	var shim struct {
		Version           int
		Address, Protocol string
	}
	if err := json.Unmarshal(data, &shim); err != nil {
		return nil, fmt.Errorf("find a shim: read %s: %w", bootstrap, err)
	}
	path, ok := strings.CutPrefix(shim.Address, "unix://")
	if !ok || shim.Protocol != "ttrpc" || shim.Version != 3 {
		return nil, fmt.Errorf("find a shim: %s has version %d, protocol %q, address %q: want version 3, ttrpc, a unix socket",
			bootstrap, shim.Version, shim.Protocol, shim.Address)
	}
	dialer := net.Dialer{Timeout: shimTimeout}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to a shim: %w", err)
	}
	return ttrpc.NewClient(conn), nil
}
