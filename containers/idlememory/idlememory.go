// Package idlememory is a containerd plugin that returns memory to the machine while no container starts or ends: the free part of
// the heap, and the pages of containerd's program.
//
// A start, and each Pod, runs through code that an idle containerd does not need, and the kernel keeps it mapped. What is released
// stays in the kernel's cache of files and is mapped again at its next use. While containerd is idle the plugin has no timer. It is
// disabled like any other, by its name in disabled_plugins of containerd's configuration.
package idlememory

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"

	"github.com/berth-dev/berth/codepages"
	"github.com/berth-dev/berth/containers/shim/guard"
)

// idleAfter is how long there must be no event of containerd until it counts as idle; the start counts as one.
const idleAfter = 10 * time.Second

const releaseFailed = "failed to release memory while containerd is idle"

func init() {
	registry.Register(&plugin.Registration{
		Type:     plugins.InternalPlugin,
		ID:       "idle-memory",
		Requires: []plugin.Type{plugins.EventPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			instance, err := ic.GetSingle(plugins.EventPlugin)
			if err != nil {
				return nil, fmt.Errorf("find the events of containerd: %w", err)
			}
			subscriber, ok := instance.(events.Subscriber)
			if !ok {
				return nil, fmt.Errorf("the events of containerd are a %T, which has no subscriptions", instance)
			}
			received, failed := subscriber.Subscribe(ic.Context)
			guard.Go(ic.Context, "idle-memory", func() { run(ic.Context, received, failed, release) })
			codepages.ReleaseWhileIdle(ic.Context, func(err error) { log.G(ic.Context).WithError(err).Warn(releaseFailed) })
			return struct{}{}, nil
		},
	})
}

func release() error {
	debug.FreeOSMemory()
	return codepages.Release()
}

// run calls release once each time there was no event for idleAfter, until ctx or the subscription ends.
func run(ctx context.Context, received <-chan *events.Envelope, failed <-chan error, release func() error) {
	timer := time.NewTimer(idleAfter)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-failed: // nil if the subscription ended without an error
			if err != nil {
				log.G(ctx).WithError(err).Warn("memory is no longer released while containerd is idle: its events ended")
			}
			return
		case <-received:
			timer.Reset(idleAfter)
		case <-timer.C:
			if err := release(); err != nil {
				log.G(ctx).WithError(err).Warn(releaseFailed)
			}
		}
	}
}
