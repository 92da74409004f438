package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/berth-dev/berth/up/supervised"
	"github.com/berth-dev/berth/up/supervisor"
)

// maxExitsBeforeReady is how often a process may exit before it was first ready. Before that a user is waiting and the
// cause is usually permanent; after that the process is restarted for as long as the cluster runs.
const maxExitsBeforeReady = 3

// infrastructure is the readiness of the control plane and containerd. Everything else requires the API and the runtime; what
// the API server alone does not need, such as the controller manager, starts beside it.
type infrastructure struct {
	api          *readiness // the API server, with all roles
	controlplane *readiness
	runtime      *readiness
}

func newInfrastructure() infrastructure {
	return infrastructure{api: newReadiness(), controlplane: newReadiness(), runtime: newReadiness()}
}

// readiness becomes ready once, or fails once.
type readiness struct {
	once  sync.Once
	done  chan struct{}
	err   error // set before done is closed
	limit int   // of exits before it was ready; 0 for none
	mu    sync.Mutex
	exits int
}

func newReadiness() *readiness {
	return &readiness{done: make(chan struct{}), limit: maxExitsBeforeReady}
}

func (l *readiness) set(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.done)
	})
}

// recordExit counts an exit, and fails at the limit.
func (l *readiness) recordExit(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.exits++; l.limit > 0 && l.exits >= l.limit {
		l.set(err)
	}
}

// isDone reports whether it is ready or has failed.
func (l *readiness) isDone() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// wait waits until it is ready, and returns why it failed.
func (l *readiness) wait(ctx context.Context) error {
	select {
	case <-l.done:
		return l.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// wait waits until the API and the runtime are ready; the first failure ends it.
func (g infrastructure) wait(ctx context.Context) error {
	runtime, api := g.runtime.done, g.api.done
	for runtime != nil || api != nil {
		select {
		case <-runtime:
			if g.runtime.err != nil {
				return g.runtime.err
			}
			runtime = nil
		case <-api:
			if g.api.err != nil {
				return g.api.err
			}
			api = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// startInfrastructure starts the container runtime, while the supervisor starts the control plane.
func (c *Cluster) startInfrastructure(l *group) infrastructure {
	g := newInfrastructure()
	if c.isRestart() {
		g.api.limit, g.controlplane.limit, g.runtime.limit = 0, 0, 0
	}
	if c.config.Member != nil { // it runs on another machine
		g.api.set(nil)
		g.controlplane.set(nil)
	} else {
		c.followControlPlane(l.ctx, g)
	}
	if c.config.APIOnly {
		g.runtime.set(nil)
		return g
	}
	l.start(func(ctx context.Context) {
		ended := false
		supervise(ctx, c.clock, "containerd", c.logAndPrint, func(ctx context.Context) error {
			err := c.runContainerd(ctx, g.runtime, ended)
			if err != nil {
				ended = true
				g.runtime.recordExit(err)
			}
			return err
		})
	})
	return g
}

// controlplaneName is the name of the control plane among the cluster's processes.
const controlplaneName = "control plane"

// rolesComponent is what the control plane calls the creation of all roles, which comes after the API server's start.
const rolesComponent = "rbac"

// followControlPlane follows the control plane, which the supervisor runs.
func (c *Cluster) followControlPlane(ctx context.Context, g infrastructure) {
	c.link.Watch(controlplaneName, supervised.ProgramEvents{
		OnLine: func(line string, old bool) { c.onControlplaneLine(ctx, line, old, g) },
		OnExit: func(err error) {
			if err != nil {
				g.api.recordExit(err)
				g.controlplane.recordExit(err)
			}
		},
	})
}

// controlplaneProgram returns berth-controlplane with this cluster's flags.
func (c *Cluster) controlplaneProgram() supervisor.Program {
	level := "info"
	if c.Verbosity > 0 {
		level = "debug"
	}
	argv := []string{
		c.Program("berth-controlplane"),
		"--data-dir", c.DataDir,
		"--run-dir", c.RunDir,
		"--api-port", strconv.Itoa(c.APIPort),
		"--bind-address", "127.0.0.1",
		"--bind-address", c.Gateway.String(),
		"--advertise-address", c.NodeIP().String(),
		"--service-cidr", c.ServiceCIDR,
		"--pod-cidr", c.PodCIDR,
		"--node-name", c.NodeName,
		"--node-ip", c.NodeIP().String(),
		"--database-checker", c.Program("containerd"),
		"--log-level", level,
	}
	if c.APIAddress != "" {
		argv = append(argv, "--bind-address", c.NodeIP().String())
	}
	if address := c.apiAddress6(); address.IsValid() {
		argv = append(argv, "--bind-address", address.String())
	}
	if c.UnsafeNoFsync {
		argv = append(argv, "--unsafe-no-fsync")
	}
	if c.StartLock != "" {
		argv = append(argv, "--start-lock", c.StartLock)
	}
	if c.CertificateLifetime != 0 {
		argv = append(argv, "--certificate-lifetime", c.CertificateLifetime.String())
	}
	if c.Hardened {
		argv = append(argv, "--hardened")
	}
	if c.config.APIOnly {
		argv = append(argv, "--api-only")
	}
	for name, values := range map[string]map[string]string{"--runtime-config": c.RuntimeConfig, "--feature-gates": c.FeatureGates} {
		if len(values) > 0 {
			argv = append(argv, name, joinValues(values))
		}
	}
	args, inherited := c.isolatedArgs()
	return c.withDefaults(supervisor.Program{
		Name: controlplaneName, Argv: append(argv, args...), Files: inherited, Log: c.Log("controlplane"), PIDFile: c.pidFile("controlplane"),
		Lines: true, Health: c.socketHealth("controlplane", maxControlplaneFailures),
	})
}

// joinValues returns NAME=VALUE,… in the order of the names.
func joinValues(values map[string]string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(values)) {
		all = append(all, name+"="+values[name])
	}
	return strings.Join(all, ",")
}

// onControlplaneLine processes a line of berth-controlplane's standard output: a component reached a state. An old line is not
// shown again.
func (c *Cluster) onControlplaneLine(ctx context.Context, line string, old bool, g infrastructure) {
	var event struct {
		Component string `json:"component"`
		State     string `json:"state"`
		Error     string `json:"error"`
	}
	if err := json.Unmarshal([]byte(line), &event); err != nil {
		c.logger.Warn("failed to parse a line of the control plane", "line", line, "error", err)
		return
	}
	c.logger.Info("control plane component changed its state", "component", event.Component, "state", event.State, "error", event.Error)
	whole := event.Component == "controlplane"
	if old && !(whole && event.State == "ready") {
		return
	}
	switch event.State {
	case "starting":
		if !whole {
			c.progress.Starting(event.Component)
		}
	case "ready":
		if whole {
			g.controlplane.set(nil)
		} else {
			c.progress.Ready(event.Component, "")
		}
		if whole || event.Component == rolesComponent {
			g.api.set(nil)
		}
	case "failed":
		if ctx.Err() != nil {
			return // a component that is stopped during its start reports a failure
		}
		c.progress.Failed(event.Component, errors.New(event.Error))
	}
}

// runFunc runs a component in this process until its context is done.
type runFunc func(ctx context.Context) error

// superviseIn runs a component in the group and restarts it if it ends early. make creates the component for each start.
func (c *Cluster) superviseIn(l *group, name string, make func() (runFunc, error)) {
	l.start(func(ctx context.Context) {
		supervise(ctx, c.clock, name, c.logAndPrint, func(ctx context.Context) error {
			run, err := make()
			if err != nil {
				return fmt.Errorf("set up %s: %w", name, err)
			}
			return run(ctx)
		})
	})
}
