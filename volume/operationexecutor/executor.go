package operationexecutor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

// DefaultConcurrency is how many attaches, and how many detaches, run at once by default.
const DefaultConcurrency = 512

// The reasons of the events about an attach.
const (
	ReasonFailedAttach  = "FailedAttachVolume"
	ReasonSuccessAttach = "SuccessfulAttachVolume"
)

// NodeGetter reads a node from the API server, not from a cache.
type NodeGetter func(ctx context.Context, name types.NodeName) (*corev1.Node, error)

// Deps holds what an Executor uses.
type Deps struct {
	// Plugins is required.
	Plugins PluginFinder
	// Nodes is required to detach volumes with verifySafeToDetach.
	Nodes NodeGetter
	// Recorder, Timeline and Logger may be nil: then there are no events, no stages and no log.
	Recorder record.EventRecorder
	Timeline *timeline.Recorder
	Logger   *slog.Logger
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
	// Observe, if not nil, gets the duration of every call to a plugin, with the plugin's qualified name.
	Observe func(plugin, operation string, took time.Duration, err error)
}

func (d *Deps) complete() error {
	if d.Plugins == nil {
		return errors.New("operationexecutor: Deps.Plugins is required")
	}
	if d.Clock == nil {
		d.Clock = clock.RealClock{}
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Observe == nil {
		d.Observe = func(string, string, time.Duration, error) {}
	}
	return nil
}

// Config holds the settings of an Executor. Zero fields mean the defaults.
type Config struct {
	// AttachConcurrency and DetachConcurrency are how many attaches and how many detaches may run at once. They are
	// separate, so that neither can starve the other. Default DefaultConcurrency.
	AttachConcurrency, DetachConcurrency int
	// InitialBackoff and MaxBackoff bound the backoff after failures. The defaults are 500 ms and 2 min 2 s.
	InitialBackoff, MaxBackoff time.Duration
}

func (c Config) withDefaults() Config {
	if c.AttachConcurrency <= 0 {
		c.AttachConcurrency = DefaultConcurrency
	}
	if c.DetachConcurrency <= 0 {
		c.DetachConcurrency = DefaultConcurrency
	}
	return c
}

// Executor is the OperationExecutor of controllers. It owns the goroutines of its operations: to stop it, cancel their
// contexts and call Wait.
type Executor struct {
	deps            Deps
	logger          *slog.Logger
	clock           clock.PassiveClock
	ops             *keyed.Executor
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

// NewOperationExecutor returns an Executor. It starts no goroutine.
func NewOperationExecutor(deps Deps, config Config) (*Executor, error) {
	if err := deps.complete(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	ops := keyed.New(
		keyed.Deps{Clock: deps.Clock, Logger: deps.Logger, OnWait: recordWait},
		keyed.Config{InitialBackoff: config.InitialBackoff, MaxBackoff: config.MaxBackoff},
	)
	return &Executor{
		deps: deps, logger: deps.Logger, clock: deps.Clock, ops: ops,
		attaches: make(chan struct{}, config.AttachConcurrency),
		detaches: make(chan struct{}, config.DetachConcurrency),
	}, nil
}

// recordWait adds the time that an operation waited for its turn to the stage that ctx belongs to.
func recordWait(ctx context.Context, waited time.Duration) { timeline.Current(ctx).AddWait(waited) }

// OperationNode returns the node for which an operation on the volume is pending: the node itself for a volume that
// several nodes may have, and none for an exclusive one, so that only one operation at a time runs on it.
func OperationNode(spec *volume.Spec, node types.NodeName) types.NodeName {
	if IsMultiAttachAllowed(spec) {
		return node
	}
	return ""
}

func key(name corev1.UniqueVolumeName, node types.NodeName) keyed.Key {
	return keyed.Key{Object: string(name), Node: string(node)}
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

// Wait blocks until all operations have ended.
func (e *Executor) Wait() { e.ops.Wait() }

// start starts op under the key of the volume, within the concurrency of its kind. op gets the time of the request.
func (e *Executor) start(
	ctx context.Context, on keyed.Key, node types.NodeName, kind string, op func(ctx context.Context, requestedAt time.Time) error,
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

// callPlugin makes one call to a plugin, measures it, and turns a panic into an error, because the actual state must
// be updated either way.
func (e *Executor) callPlugin(plugin, kind string, f func() error) (err error) {
	began := e.clock.Now()
	defer func() { e.deps.Observe(plugin, kind, e.clock.Since(began), err) }()
	return contain.Do(fmt.Sprintf("plugin %q", plugin), "", f)
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

// beginSpans begins a stage in the timeline of each Pod that waits for the volume.
func (e *Executor) beginSpans(want VolumeToAttach, requestedAt time.Time) []*timeline.Span {
	spans := make([]*timeline.Span, 0, len(want.ScheduledPods))
	for _, pod := range want.ScheduledPods {
		span := e.deps.Timeline.BeginQueued(timeline.PodRef(pod), "attachdetach", timeline.StageAttach,
			want.VolumeSpec.DirName(), requestedAt)
		if want.VolumeSpec.PV != nil {
			span.SetCause(timeline.RefOf("PersistentVolume", want.VolumeSpec.PV))
		}
		spans = append(spans, span)
	}
	return spans
}

// attach calls the plugin and updates the actual state.
func (e *Executor) attach(ctx context.Context, want VolumeToAttach, actual ActualStateOfWorldAttacherUpdater) error {
	var plugin AttachablePlugin
	err := e.callPlugin("", OperationAttach+"_lookup", func() (err error) {
		plugin, err = e.deps.Plugins.FindAttachablePluginBySpec(want.VolumeSpec)
		return err
	})
	if err != nil {
		return err // no call was made, so nothing is uncertain
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

// recordAttach writes the events and the log message of an attach.
func (e *Executor) recordAttach(want VolumeToAttach, err error) {
	name := want.VolumeSpec.DirName()
	if err != nil {
		e.logger.Warn("failed to attach volume", "volume", want.VolumeName, "node", want.NodeName, "error", err)
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
		e.logger.Warn("failed to detach volume", "volume", from.VolumeName, "node", from.NodeName, "error", err)
		// The state is uncertain now. Only a successful attach may put the volume back on the node's list.
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

// verifySafeToDetach reads the node from the API server, because a cache may not show yet that the node began to mount.
func (e *Executor) verifySafeToDetach(ctx context.Context, from AttachedVolume) error {
	if e.deps.Nodes == nil {
		return fmt.Errorf("detach volume %q from node %q: Deps.Nodes is required to check whether it is in use", from.VolumeName, from.NodeName)
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
