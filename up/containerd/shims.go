package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/ttrpc"
	"golang.org/x/sync/errgroup"
)

const (
	// criNamespace is containerd's namespace for what its CRI makes.
	criNamespace = "k8s.io"
	// shimPatience is how long a shim may take to answer; one that hangs must not hold up containerd's start.
	shimPatience = 2 * time.Second
	// shimsAtOnce bounds how many shims are asked at the same time.
	shimsAtOnce = 16
)

// bundles is the directory in which containerd keeps a bundle for each task, by the container's id. One is made before
// its shim is started, and removed after the shim has ended: containerd knows no shim without one.
func (c Config) bundles() string {
	return filepath.Join(c.State(), "io.containerd.runtime.v2.task", criNamespace)
}

// watch asks the shims how containers end while containerd is away.
type watch struct {
	note   func(id string, code uint32, finished time.Time)
	logger *slog.Logger
	cancel context.CancelFunc

	mu      sync.Mutex // guards waiting
	waiting map[string]*waiting
	joined  sync.WaitGroup
}

// waiting is one container that runs, and its shim.
type waiting struct {
	shim taskapi.TTRPCTaskService
	// done is closed when its end is kept, or cannot be known any more.
	done chan struct{}
}

// watchShims asks each shim of config's containerd, and keeps waiting for the ends of containers that run, until
// settle or end. It returns when all have answered once.
func watchShims(ctx context.Context, config Config, note func(string, uint32, time.Time), logger *slog.Logger) *watch {
	lasting, cancel := context.WithCancel(context.WithoutCancel(ctx))
	w := &watch{note: note, logger: logger, cancel: cancel, waiting: make(map[string]*waiting)}
	paths, _ := filepath.Glob(filepath.Join(config.bundles(), "*", "bootstrap.json")) // the pattern is right
	var asking errgroup.Group
	asking.SetLimit(shimsAtOnce)
	for _, path := range paths {
		id := filepath.Base(filepath.Dir(path))
		if !config.hasContainer(id) {
			continue // a sandbox: nobody asks for its exit code
		}
		asking.Go(func() error {
			if err := w.ask(ctx, lasting, id, path); err != nil {
				logger.Warn("a shim does not tell how its container fares", "container", id, "error", err)
			}
			return nil
		})
	}
	_ = asking.Wait() // each has logged its error
	return w
}

// ask asks the shim of one container.
func (w *watch) ask(ctx, lasting context.Context, id, bootstrap string) error {
	client, err := dialShim(ctx, bootstrap)
	if err != nil {
		return err
	}
	shim := taskapi.NewTTRPCTaskClient(client)
	state, err := stateOf(ctx, shim, id)
	if err != nil || state.Status == tasktypes.Status_STOPPED {
		_ = client.Close() // nothing is under way
		if err == nil {
			w.note(id, state.ExitStatus, state.ExitedAt.AsTime())
		}
		return err
	}
	one := &waiting{shim: shim, done: make(chan struct{})}
	w.mu.Lock()
	w.waiting[id] = one
	w.mu.Unlock()
	w.joined.Go(func() {
		defer client.Close()
		defer close(one.done)
		if ended, err := shim.Wait(lasting, &taskapi.WaitRequest{ID: id}); err == nil {
			w.note(id, ended.ExitStatus, ended.ExitedAt.AsTime())
		}
	})
	return nil
}

// settle waits for the ends that containerd has taken from their shims meanwhile, and ends the watch.
func (w *watch) settle(ctx context.Context) {
	w.mu.Lock()
	var asking errgroup.Group
	asking.SetLimit(shimsAtOnce)
	for id, one := range w.waiting {
		asking.Go(func() error {
			if state, err := stateOf(ctx, one.shim, id); err == nil && state.Status != tasktypes.Status_STOPPED {
				return nil // it runs, and from now on containerd tells of its end
			}
			bounded, cancel := context.WithTimeout(ctx, shimPatience)
			defer cancel()
			select {
			case <-one.done:
			case <-bounded.Done():
				w.logger.Warn("a shim does not tell how its container ended", "container", id)
			}
			return nil
		})
	}
	w.mu.Unlock()
	_ = asking.Wait() // it has no errors
	w.end()
}

// end ends the watch at once.
func (w *watch) end() {
	w.cancel()
	w.joined.Wait()
}

func stateOf(ctx context.Context, shim taskapi.TTRPCTaskService, id string) (*taskapi.StateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, shimPatience)
	defer cancel()
	state, err := shim.State(ctx, &taskapi.StateRequest{ID: id})
	if err != nil {
		return nil, fmt.Errorf("ask a shim for the state of container %s: %w", id, err)
	}
	return state, nil
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
		return nil, fmt.Errorf("find a shim: %s speaks of version %d, %q at %q: want version 3 of ttrpc on a unix socket",
			bootstrap, shim.Version, shim.Protocol, shim.Address)
	}
	dialer := net.Dialer{Timeout: shimPatience}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("connect to a shim: %w", err)
	}
	return ttrpc.NewClient(conn), nil
}
