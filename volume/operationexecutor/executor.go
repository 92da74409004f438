package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

// DefaultConcurrency is how many attaches, and how many detaches, run at once unless told otherwise.
const DefaultConcurrency = 512

// The reasons of the events that attaching writes.
const (
	ReasonFailedAttach  = "FailedAttachVolume"
	ReasonSuccessAttach = "SuccessfulAttachVolume"
)

// NodeGetter reads a node from the API server, not from a cache.
type NodeGetter func(ctx context.Context, name types.NodeName) (*corev1.Node, error)

// ExecutorDeps is what an Executor needs. Plugins is required; Nodes is, if volumes are detached with a check of
// the node. The others may be nil: no events, no record, no log, the real clock, no measurements.
type ExecutorDeps struct {
	Plugins  PluginFinder
	Nodes    NodeGetter
	Recorder record.EventRecorder
	Timeline *timeline.Recorder
	Logger   *slog.Logger
	Clock    clock.PassiveClock
	// Observe gets the duration of every call to a plugin, under its full name.
	Observe func(plugin, operation string, took time.Duration, err error)
}

// ExecutorConfig is the values that an Executor runs with. Zero fields mean the defaults.
type ExecutorConfig struct {
	// AttachConcurrency and DetachConcurrency bound how many attaches and how many detaches run at once, so that neither can
	// starve the other. Default DefaultConcurrency.
	AttachConcurrency, DetachConcurrency int
	// InitialBackoff and MaxBackoff bound the pause after failures; see Config.
	InitialBackoff, MaxBackoff time.Duration
}

// Executor is the OperationExecutor of controllers. It owns the goroutines of its operations: who made it ends their
// contexts and calls Wait.
type Executor struct {
	deps            ExecutorDeps
	logger          *slog.Logger
	clock           clock.PassiveClock
	ops             *Keyed
	attaches        chan struct{}
	detaches        chan struct{}
	verifying       atomic.Bool
	completionFuncs []func(corev1.UniqueVolumeName, types.NodeName) // written before the first operation only
}

var (
	_ OperationExecutor  = (*Executor)(nil)
	_ BackoffTracker     = (*Executor)(nil)
	_ CompletionNotifier = (*Executor)(nil)
)

// NewOperationExecutor makes an Executor. It starts nothing.
func NewOperationExecutor(deps ExecutorDeps, config ExecutorConfig) *Executor {
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Observe == nil {
		deps.Observe = func(string, string, time.Duration, error) {}
	}
	if config.AttachConcurrency <= 0 {
		config.AttachConcurrency = DefaultConcurrency
	}
	if config.DetachConcurrency <= 0 {
		config.DetachConcurrency = DefaultConcurrency
	}
	return &Executor{
		deps: deps, logger: deps.Logger, clock: deps.Clock,
		ops: NewKeyed(Config{InitialBackoff: config.InitialBackoff, MaxBackoff: config.MaxBackoff},
			Deps{Clock: deps.Clock, Logger: deps.Logger}),
		attaches: make(chan struct{}, config.AttachConcurrency),
		detaches: make(chan struct{}, config.DetachConcurrency),
	}
}

// OperationNode is the node that an operation on the volume is pending on: the node itself for volumes that several nodes
// may have, and none for exclusive ones, so that only one node at a time is worked on.
func OperationNode(spec *volume.Spec, node types.NodeName) types.NodeName {
	if IsMultiAttachAllowed(spec) {
		return node
	}
	return ""
}

func key(name corev1.UniqueVolumeName, node types.NodeName) Key {
	return Key{Object: string(name), Node: string(node)}
}

// OnCompletion implements CompletionNotifier.
func (e *Executor) OnCompletion(f func(corev1.UniqueVolumeName, types.NodeName)) {
	e.completionFuncs = append(e.completionFuncs, f)
}

// IsOperationPending implements OperationExecutor.
func (e *Executor) IsOperationPending(name corev1.UniqueVolumeName, node types.NodeName) bool {
	return e.ops.IsOperationPending(key(name, node))
}

// IsOperationSafeToRetry implements OperationExecutor.
func (e *Executor) IsOperationSafeToRetry(name corev1.UniqueVolumeName, node types.NodeName, operation string) bool {
	return !e.IsOperationPending(name, node) && e.RetryAfter(name, node, operation) == 0
}

// RetryAfter implements Pacer.
func (e *Executor) RetryAfter(name corev1.UniqueVolumeName, node types.NodeName, operation string) time.Duration {
	return e.ops.RetryAfter(key(name, node), operation)
}

// ForgetFailures implements Pacer.
func (e *Executor) ForgetFailures(name corev1.UniqueVolumeName, node types.NodeName) {
	e.ops.ForgetFailures(key(name, node))
}

// Wait returns when no operation runs any more.
func (e *Executor) Wait() { e.ops.Wait() }

// start runs op under the key of the volume, in a lane. op is told when it was asked for.
func (e *Executor) start(
	ctx context.Context, on Key, node types.NodeName, kind string, op func(ctx context.Context, requestedAt time.Time) error,
) error {
	requestedAt := e.clock.Now()
	slots := e.attaches
	if kind == OperationDetach {
		slots = e.detaches
	}
	return e.ops.Start(ctx, on, kind, func(ctx context.Context) error {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-ctx.Done():
			return ctx.Err()
		}
		return op(ctx, requestedAt)
	}, func(error) {
		for _, f := range e.completionFuncs {
			f(corev1.UniqueVolumeName(on.Object), node)
		}
	})
}

// callPlugin runs a call to the plugin, measures it, and turns a panic into an error: the state must be written either way.
func (e *Executor) callPlugin(plugin, kind string, f func() error) (err error) {
	began := e.clock.Now()
	defer func() {
		if p := recover(); p != nil {
			e.logger.Error("volume plugin panicked", "plugin", plugin, "operation", kind, "panic", p,
				"stack", string(debug.Stack()))
			err = fmt.Errorf("plugin %q panicked: %v", plugin, p)
		}
		e.deps.Observe(plugin, kind, e.clock.Since(began), err)
	}()
	return f()
}

// AttachVolume implements OperationExecutor.
func (e *Executor) AttachVolume(
	ctx context.Context, want VolumeToAttach, actual ActualStateOfWorldAttacherUpdater,
) error {
	on := key(want.VolumeName, OperationNode(want.VolumeSpec, want.NodeName))
	return e.start(ctx, on, want.NodeName, OperationAttach, func(ctx context.Context, requestedAt time.Time) error {
		spans := e.beginSpans(want, requestedAt)
		err := e.attach(ctx, want, actual)
		for _, span := range spans {
			span.End(err)
		}
		e.recordAttach(want, err)
		return err
	})
}

// beginSpans notes the attach with each of the Pods that wait for it.
func (e *Executor) beginSpans(want VolumeToAttach, requestedAt time.Time) []*timeline.Span {
	spans := make([]*timeline.Span, 0, len(want.ScheduledPods))
	for _, pod := range want.ScheduledPods {
		span := e.deps.Timeline.BeginQueued(timeline.PodRef(pod), "attachdetach", timeline.StageAttach,
			want.VolumeSpec.DirName(), requestedAt)
		if want.VolumeSpec.PV != nil {
			span.Because(timeline.RefOf("PersistentVolume", want.VolumeSpec.PV))
		}
		spans = append(spans, span)
	}
	return spans
}

// attach calls the plugin and writes the state.
func (e *Executor) attach(ctx context.Context, want VolumeToAttach, actual ActualStateOfWorldAttacherUpdater) error {
	var plugin AttachablePlugin
	err := e.callPlugin("", OperationAttach+"_lookup", func() (err error) {
		plugin, err = e.deps.Plugins.FindAttachablePluginBySpec(want.VolumeSpec)
		return err
	})
	if err != nil {
		return err // nothing was begun, so there is nothing to be uncertain of
	}
	var devicePath string
	err = e.callPlugin(want.VolumeSpec.QualifiedPluginName(plugin.Name()), OperationAttach, func() (err error) {
		devicePath, err = plugin.Attach(ctx, want.VolumeSpec, want.NodeName)
		return err
	})
	if err == nil {
		return actual.MarkVolumeAsAttached(want.VolumeName, want.VolumeSpec, want.NodeName, devicePath)
	}
	if dangling := (*DanglingAttachError)(nil); errors.As(err, &dangling) && dangling.Node != want.NodeName {
		err = errors.Join(err, actual.MarkVolumeAsUncertain(want.VolumeName, want.VolumeSpec, dangling.Node))
	}
	if markErr := actual.MarkVolumeAsUncertain(want.VolumeName, want.VolumeSpec, want.NodeName); markErr != nil {
		return errors.Join(err, markErr)
	}
	return err
}

// recordAttach writes the events and the log.
func (e *Executor) recordAttach(want VolumeToAttach, err error) {
	name := want.VolumeSpec.DirName()
	if err != nil {
		e.logger.Warn("cannot attach volume", "volume", want.VolumeName, "node", want.NodeName, "error", err)
	} else {
		e.logger.Info("attached volume", "volume", want.VolumeName, "node", want.NodeName)
	}
	if e.deps.Recorder == nil {
		return
	}
	for _, pod := range want.ScheduledPods {
		if err != nil {
			e.deps.Recorder.Event(pod, corev1.EventTypeWarning, ReasonFailedAttach,
				fmt.Sprintf("AttachVolume.Attach failed for volume %q : %v", name, err))
			continue
		}
		e.deps.Recorder.Event(pod, corev1.EventTypeNormal, ReasonSuccessAttach,
			fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", name))
	}
}

// DetachVolume implements OperationExecutor.
func (e *Executor) DetachVolume(ctx context.Context, from AttachedVolume, verifySafeToDetach bool,
	actual ActualStateOfWorldAttacherUpdater,
) error {
	pluginName, volumeName, err := SplitUniqueVolumeName(from.VolumeName)
	if err != nil {
		return fmt.Errorf("detach volume from node %q: %w", from.NodeName, err)
	}
	plugin, err := e.deps.Plugins.FindAttachablePluginByName(pluginName)
	if err != nil {
		return fmt.Errorf("detach volume %q from node %q: %w", from.VolumeName, from.NodeName, err)
	}
	on := key(from.VolumeName, OperationNode(from.VolumeSpec, from.NodeName))
	return e.start(ctx, on, from.NodeName, OperationDetach, func(ctx context.Context, _ time.Time) error {
		err := e.detach(ctx, plugin, volumeName, from, verifySafeToDetach)
		if err == nil {
			actual.MarkVolumeAsDetached(from.VolumeName, from.NodeName)
			e.logger.Info("detached volume", "volume", from.VolumeName, "node", from.NodeName)
			return nil
		}
		e.logger.Warn("cannot detach volume", "volume", from.VolumeName, "node", from.NodeName, "error", err)
		// Nothing is certain now. Only an attach that succeeds may put it back on the node's list.
		return errors.Join(err, actual.MarkVolumeAsUncertain(from.VolumeName, from.VolumeSpec, from.NodeName))
	})
}

func (e *Executor) detach(
	ctx context.Context, plugin AttachablePlugin, volumeName string, from AttachedVolume, verify bool,
) error {
	if verify {
		if err := e.verifySafeToDetach(ctx, from); err != nil {
			return err
		}
	}
	name := plugin.Name()
	if from.VolumeSpec != nil {
		name = from.VolumeSpec.QualifiedPluginName(name)
	}
	return e.callPlugin(name, OperationDetach, func() error {
		return plugin.Detach(ctx, volumeName, from.NodeName)
	})
}

// verifySafeToDetach asks the API server, because a cache may not know yet that the node has begun to mount.
func (e *Executor) verifySafeToDetach(ctx context.Context, from AttachedVolume) error {
	if e.deps.Nodes == nil {
		return fmt.Errorf("detach volume %q from node %q: no way to ask whether it is in use", from.VolumeName, from.NodeName)
	}
	node, err := e.deps.Nodes(ctx, from.NodeName)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read node %q to see whether volume %q is in use: %w", from.NodeName, from.VolumeName, err)
	case slices.Contains(node.Status.VolumesInUse, from.VolumeName):
		return fmt.Errorf("detach volume %q from node %q: it is still in use by the node", from.VolumeName, from.NodeName)
	}
	return nil
}
