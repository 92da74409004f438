package volumebinding

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/plugins/volumebinding"
)

// Replaces is the name of the plugin that this one replaces in a profile.
const Replaces = upstream.Name

// Name is the plugin's name in profiles, errors and metrics. The framework finds a
// plugin by the name it is registered under and by its own: both are this one. It
// cannot be upstream's, which the framework has registered already.
const Name = "EventVolumeBinding"

// Plugin is upstream's plugin at each of its extension points, under our name and
// with our wait.
type Plugin struct{ *upstream.VolumeBinding }

var (
	_ fwk.PreFilterPlugin   = (*Plugin)(nil)
	_ fwk.FilterPlugin      = (*Plugin)(nil)
	_ fwk.PreScorePlugin    = (*Plugin)(nil)
	_ fwk.ScorePlugin       = (*Plugin)(nil)
	_ fwk.ReservePlugin     = (*Plugin)(nil)
	_ fwk.PreBindPlugin     = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
	_ fwk.SignPlugin        = (*Plugin)(nil)
)

// New creates the plugin: it is a factory for the scheduler's registry. It uses
// upstream's default arguments and ignores those of the profile.
func New(ctx context.Context, _ runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := defaultArgs()
	if err != nil {
		return nil, err
	}
	features := feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
	made, err := upstream.New(ctx, args, handle, features)
	if err != nil {
		return nil, err
	}
	plugin, ok := made.(*upstream.VolumeBinding)
	if !ok {
		return nil, fmt.Errorf("upstream's VolumeBinding is a %T", made)
	}
	timeout := time.Duration(args.BindTimeoutSeconds) * time.Second
	own, err := newBinder(plugin.Binder, handle.ClientSet(), handle.SharedInformerFactory(), timeout)
	if err != nil {
		return nil, err
	}
	plugin.Binder = own
	return &Plugin{plugin}, nil
}

// Name implements fwk.Plugin.
func (*Plugin) Name() string { return Name }

// defaultArgs are the arguments that upstream's plugin has in the default profile.
func defaultArgs() (*schedulerconfig.VolumeBindingArgs, error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, fmt.Errorf("create kube-scheduler's default configuration: %w", err)
	}
	for _, profile := range defaults.Profiles {
		for _, plugin := range profile.PluginConfig {
			if args, ok := plugin.Args.(*schedulerconfig.VolumeBindingArgs); ok {
				return args, nil
			}
		}
	}
	return nil, errors.New("kube-scheduler's default configuration has no arguments for VolumeBinding")
}
