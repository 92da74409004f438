package up

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"sync"
)

// startTries is how often a process of the ground may die before it was first ready. After that it is restarted
// for as long as the cluster runs; before, a person is waiting and the reason will not go away by itself.
const startTries = 3

// ground is the control plane and the container runtime coming up: what all else stands on.
type ground struct {
	controlplane *latch
	runtime      *latch
}

// latch is the first readiness of a process: it opens once, or fails once.
type latch struct {
	once  sync.Once
	done  chan struct{}
	err   error // set before done is closed
	mu    sync.Mutex
	tries int
}

func newLatch() *latch { return &latch{done: make(chan struct{})} }

func (l *latch) open(err error) {
	l.once.Do(func() {
		l.err = err
		close(l.done)
	})
}

// died counts an end before the first readiness.
func (l *latch) died(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tries++; l.tries >= startTries {
		l.open(err)
	}
}

// wait waits until both processes are ready; the first failure ends it.
func (g ground) wait(ctx context.Context) error {
	runtime, controlplane := g.runtime.done, g.controlplane.done
	for runtime != nil || controlplane != nil {
		select {
		case <-runtime:
			if g.runtime.err != nil {
				return g.runtime.err
			}
			runtime = nil
		case <-controlplane:
			if g.controlplane.err != nil {
				return g.controlplane.err
			}
			controlplane = nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// startGround starts the control plane and the container runtime at the same time.
func (c *Cluster) startGround(l *layer) ground {
	g := ground{controlplane: newLatch(), runtime: newLatch()}
	l.start(func(ctx context.Context) {
		supervise(ctx, c.clock, "control plane", c.note, func(ctx context.Context) error {
			err := c.controlplaneProgram(ctx, g.controlplane).run(ctx)
			if err != nil {
				g.controlplane.died(err)
			}
			return err
		})
	})
	l.start(func(ctx context.Context) {
		supervise(ctx, c.clock, "containerd", c.note, func(ctx context.Context) error {
			err := c.runContainerd(ctx, g.runtime)
			if err != nil {
				g.runtime.died(err)
			}
			return err
		})
	})
	return g
}

// controlplaneProgram is berth-controlplane with this cluster's flags. It is asked to stop when ctx ends.
func (c *Cluster) controlplaneProgram(ctx context.Context, ready *latch) program {
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
		"--advertise-address", c.Gateway.String(),
		"--service-cidr", c.ServiceCIDR,
		"--pod-cidr", c.PodCIDR,
		"--node-name", c.NodeName,
		"--node-ip", c.Gateway.String(),
		"--log-level", level,
	}
	if c.UnsafeNoFsync {
		argv = append(argv, "--unsafe-no-fsync")
	}
	return program{
		name: "control plane", argv: argv, log: c.Log("controlplane"), pid: filepath.Join(c.RunDir, "controlplane.pid"),
		line: func(line []byte) { c.controlplaneEvent(ctx, line, ready) },
	}
}

// controlplaneEvent takes a line of berth-controlplane's standard output: a component reached a state.
func (c *Cluster) controlplaneEvent(ctx context.Context, line []byte, ready *latch) {
	var event struct {
		Component string `json:"component"`
		State     string `json:"state"`
		Error     string `json:"error"`
	}
	if err := json.Unmarshal(line, &event); err != nil {
		c.log.Warn("unreadable line from the control plane", "line", string(line), "error", err)
		return
	}
	c.log.Info("control plane", "component", event.Component, "state", event.State, "error", event.Error)
	whole := event.Component == "controlplane"
	switch event.State {
	case "starting":
		if !whole {
			c.progress.Starting(event.Component)
		}
	case "ready":
		if whole {
			ready.open(nil)
		} else {
			c.progress.Ready(event.Component, "")
		}
	case "failed":
		if ctx.Err() != nil {
			return // a component that is stopped while it starts ends as if it had failed
		}
		c.progress.Failed(event.Component, errors.New(event.Error))
	}
}

// part is one of Berth's own parts: it runs in this process until its context ends.
type runPart func(ctx context.Context) error

// keep runs a part in the layer and starts it again if it ends unasked. make prepares a fresh one for each start.
func (c *Cluster) keep(l *layer, name string, make func() (runPart, error)) {
	l.start(func(ctx context.Context) {
		supervise(ctx, c.clock, name, c.note, func(ctx context.Context) error {
			run, err := make()
			if err != nil {
				return fmt.Errorf("set up %s: %w", name, err)
			}
			return run(ctx)
		})
	})
}
