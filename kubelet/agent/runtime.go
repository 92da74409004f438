package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/container"
	"github.com/berth-dev/berth/kubelet/cri"
	"github.com/berth-dev/berth/kubelet/housekeeping"
	"github.com/berth-dev/berth/kubelet/logs"
	"github.com/berth-dev/berth/kubelet/metrics"
)

// connection is the part of *cri.Client that comes and goes.
type connection interface {
	Watch(ctx context.Context, changed func(connected bool)) error
	Close() error
	PID() int
}

// runtimeComponents are the container runtime and its connection.
type runtimeComponents struct {
	client container.Runtime
	// connection is nil if Deps.Runtime replaces it.
	connection connection
	images     *cri.Client // of the image service; nil if the runtime is it
	links      *logs.Links // nil if container logs are not linked
	name       *runtimeName
}

// versionTimeout bounds the request for the runtime's name, for which the status of a Pod waits.
const versionTimeout = 2 * time.Second

// runtimeName is the name by which the runtime calls itself: the scheme of container IDs in statuses.
type runtimeName struct {
	runtime container.Runtime
	logger  *slog.Logger
	mu      sync.Mutex // guards name, and is held while it is read
	name    string     // empty while it is not known
}

// get returns the name. It reads it from the runtime if no one has before.
func (n *runtimeName) get() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.name == "" {
		n.read(context.Background())
	}
	return cmp.Or(n.name, "containerd") // a status with another scheme follows when the runtime is reachable
}

// refresh reads the name: the runtime that is connected now may be another one.
func (n *runtimeName) refresh(ctx context.Context) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.read(ctx)
}

func (n *runtimeName) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	resp, err := n.runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		n.logger.Warn("failed to read the container runtime's name", "error", err)
		return
	}
	n.name = resp.RuntimeName
}

func newRuntime(base *base) (*runtimeComponents, error) {
	r := &runtimeComponents{client: base.deps.Runtime}
	if r.client == nil {
		runtimeMetrics := metrics.NewRuntime(base.metrics.main)
		if err := r.connect(base, runtimeMetrics); err != nil {
			return nil, err
		}
		r.client = metrics.InstrumentRuntime(r.client, runtimeMetrics, base.deps.Clock)
	}
	if dir := base.config.Logs.ContainersDir; dir != "" {
		r.links = logs.NewLinks(dir, base.config.Logs.PodsDir, base.deps.OS)
		r.client = housekeeping.LinkLogs(r.client, r.links, base.deps.Logger)
	}
	r.name = &runtimeName{runtime: r.client, logger: base.deps.Logger}
	return r, nil
}

// connect makes the connections to the runtime, and to the image service if that is another one.
func (r *runtimeComponents) connect(base *base, observer *metrics.Runtime) error {
	config, deps := &base.config.Runtime, cri.Deps{Observe: observer.Observe, Clock: base.deps.Clock, TracerProvider: base.tracing}
	client, err := cri.New(deps, cri.Config{Endpoint: config.Endpoint, Timeout: config.Timeout})
	if err != nil {
		return err
	}
	r.connection, r.client = client, client
	if config.ImageEndpoint == "" || config.ImageEndpoint == config.Endpoint {
		return nil
	}
	if r.images, err = cri.New(deps, cri.Config{Endpoint: config.ImageEndpoint, Timeout: config.Timeout}); err != nil {
		return errors.Join(err, client.Close())
	}
	r.client = struct {
		runtimeapi.RuntimeServiceClient
		runtimeapi.ImageServiceClient
	}{client, r.images}
	return nil
}

// setPodCIDR gives the runtime the range of Pods' addresses.
func setPodCIDR(ctx context.Context, runtime container.Runtime, cidr string) error {
	_, err := runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{
		RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}},
	})
	if err != nil {
		return fmt.Errorf("give the container runtime the range %s of Pods' addresses: %w", cidr, err)
	}
	return nil
}

// pid returns the process ID of the runtime; nil if there is no connection.
func (r *runtimeComponents) pid() func() int {
	if r.connection == nil {
		return nil
	}
	return r.connection.PID
}

func (r *runtimeComponents) close() error {
	if r.connection == nil {
		return nil
	}
	if r.images != nil {
		return errors.Join(r.images.Close(), r.connection.Close())
	}
	return r.connection.Close()
}

// runtimeWatcher notifies the other components when the runtime is connected or lost, and of what it can do.
type runtimeWatcher struct {
	runtime  *runtimeComponents
	endpoint string
	// podCIDR is the range of Pods' addresses that the runtime is given on each connection; empty for none.
	podCIDR string
	// setup is called first on each connection; an error ends the agent.
	setup func(ctx context.Context) error
	// status takes the runtime's status, then connected is called.
	status    func(*runtimeapi.StatusResponse)
	connected func()
	// lost is called when the runtime cannot be reached any more.
	lost   func()
	logger *slog.Logger
}

// Start watches the connection until ctx ends.
func (w *runtimeWatcher) Start(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	if w.runtime.connection == nil {
		return w.onConnected(ctx)
	}
	before := false
	err := w.runtime.connection.Watch(ctx, func(connected bool) {
		lost := before && !connected
		before = connected
		if lost {
			w.logger.Warn("container runtime is unavailable; reconnecting", "endpoint", w.endpoint)
			w.lost()
		}
		if connected {
			if err := w.onConnected(ctx); err != nil {
				fail(err)
			}
		}
	})
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		err = errors.Join(err, cause)
	}
	return err
}

func (w *runtimeWatcher) onConnected(ctx context.Context) error {
	if err := w.setup(ctx); err != nil {
		return err
	}
	w.runtime.name.refresh(ctx)
	if w.podCIDR != "" {
		if err := setPodCIDR(ctx, w.runtime.client, w.podCIDR); err != nil {
			w.logger.Warn("failed to configure the container runtime", "error", err)
		}
	}
	if resp, err := w.runtime.client.Status(ctx, &runtimeapi.StatusRequest{}); err == nil {
		w.status(resp)
	}
	w.connected()
	return nil
}

// networkError returns why the runtime has no network for Pods, nil if it has one.
func networkError(resp *runtimeapi.StatusResponse) error {
	for _, condition := range resp.GetStatus().GetConditions() {
		if condition.Type == runtimeapi.NetworkReady && !condition.Status {
			return fmt.Errorf("container runtime: %s: %s", condition.Reason, condition.Message)
		}
	}
	return nil
}
