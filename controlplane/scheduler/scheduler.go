// Package scheduler runs kube-scheduler inside this process, with one plugin
// replaced (see package volumebinding).
package scheduler

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"github.com/berth-dev/berth/controlplane/atomicfile"
	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/contain"
	"github.com/berth-dev/berth/controlplane/scheduler/volumebinding"
)

// Name is the scheduler's name among the kubeconfigs.
const Name = "scheduler"

// Scheduler is the scheduler. Use it once: it keeps process-wide state.
type Scheduler struct{ config *config.Config }

// New returns a scheduler that Run starts. Its kubeconfig must exist by then.
func New(config *config.Config) *Scheduler { return &Scheduler{config: config} }

// Run schedules until ctx ends; ready is called once, when its caches have been
// filled. The API server must be ready before.
func (s *Scheduler) Run(ctx context.Context, ready func()) error {
	file, err := configuration(s.config.Kubeconfig(Name))
	if err != nil {
		return err
	}
	if err := atomicfile.Write(s.config.SchedulerConfigFile(), file); err != nil {
		return err
	}
	o := options.NewOptions()
	all := o.Flags.FlagSet("all")
	for _, set := range o.Flags.FlagSets {
		if set != all {
			all.AddFlagSet(set)
		}
	}
	if err := all.Parse(Args(s.config)); err != nil {
		return fmt.Errorf("parse flags: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	completed, scheduler, err := app.Setup(ctx, o, app.WithPlugin(volumebinding.Name, volumebinding.New))
	if err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	watched := make(chan struct{})
	go contain.Guard("scheduler.waitReady", func() {
		defer close(watched)
		if scheduler.WaitForHandlersSync(ctx) == nil {
			ready()
		}
	})()
	err = app.Run(ctx, completed, scheduler)
	stopped := ctx.Err() != nil
	cancel()
	<-watched
	switch {
	case stopped:
		return nil // upstream returns an error for every end without leader election
	case err != nil:
		return err
	default:
		return errors.New("it ended by itself")
	}
}

// Args are kube-scheduler's flags for c.
func Args(c *config.Config) []string {
	return []string{
		"--config=" + c.SchedulerConfigFile(),
		"--secure-port=0", // nothing else may listen
	}
}
