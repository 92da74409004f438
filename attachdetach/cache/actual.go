package cache

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// AttachState is what is known of one attachment.
type AttachState int

const (
	// AttachStateAttached means that the volume is attached for certain.
	AttachStateAttached AttachState = iota
	// AttachStateUncertain means that it may be.
	AttachStateUncertain
	// AttachStateDetached means that it is not.
	AttachStateDetached
)

// String is the state as it appears in logs.
func (s AttachState) String() string {
	return [...]string{"Attached", "Uncertain", "Detached"}[s]
}

// ActualStateOfWorld is which volumes are, or may be, attached to which nodes, and which of them the nodes' statuses
// should list. What it returns is the caller's own, but for the objects it points to, which are shared.
type ActualStateOfWorld interface {
	operationexecutor.ActualStateOfWorldAttacherUpdater

	// AddVolumeNode adds an attachment, confirmed (and reported) if attached, else uncertain, and returns the volume's
	// unique name. An empty name is derived from the spec. A new attachment counts as mounted until the node says
	// otherwise; one that is known keeps that, and the time of its detach request.
	AddVolumeNode(name corev1.UniqueVolumeName, spec *volume.Spec, node types.NodeName, devicePath string, attached bool,
	) (corev1.UniqueVolumeName, error)
	// SetVolumesMountedByNode sets which volumes the node reports as mounted, all of them. Unknown volumes are ignored.
	SetVolumesMountedByNode(names []corev1.UniqueVolumeName, node types.NodeName)
	// SetNodeStatusUpdateNeeded flags the node: its status must be written again. An unknown node is only logged.
	SetNodeStatusUpdateNeeded(node types.NodeName)
	// ResetDetachRequestTime forgets that the volume was to be detached.
	ResetDetachRequestTime(name corev1.UniqueVolumeName, node types.NodeName)
	// SetDetachRequestTime stamps the attachment on the first call and returns how long ago that was. It is an error
	// if the volume is no longer attached to the node.
	SetDetachRequestTime(name corev1.UniqueVolumeName, node types.NodeName) (time.Duration, error)
	// DeleteVolumeNode removes the attachment, also from the node's list. An unknown attachment is no error.
	DeleteVolumeNode(name corev1.UniqueVolumeName, node types.NodeName)
	// GetAttachState is what is known of the attachment.
	GetAttachState(name corev1.UniqueVolumeName, node types.NodeName) AttachState
	// GetAttachedVolume is the attachment, confirmed or uncertain; false if there is none.
	GetAttachedVolume(name corev1.UniqueVolumeName, node types.NodeName) (AttachedVolume, bool)
	// GetAttachedVolumes is all attachments, uncertain ones included.
	GetAttachedVolumes() []AttachedVolume
	// GetAttachedVolumesForNode is the node's attachments, uncertain ones included.
	GetAttachedVolumesForNode(node types.NodeName) []AttachedVolume
	// GetAttachedVolumesPerNode is all confirmed attachments, to be verified.
	GetAttachedVolumesPerNode() map[types.NodeName][]operationexecutor.AttachedVolume
	// GetNodesForAttachedVolume is the nodes that have the volume for certain, sorted.
	GetNodesForAttachedVolume(name corev1.UniqueVolumeName) []types.NodeName
	// GetNodesForPossiblyAttachedVolume is the nodes that have or may have the volume, sorted.
	GetNodesForPossiblyAttachedVolume(name corev1.UniqueVolumeName) []types.NodeName
	// GetVolumesToReportAttached returns the list, sorted by name, of every flagged node, and clears the flags.
	GetVolumesToReportAttached() map[types.NodeName][]corev1.AttachedVolume
	// GetVolumesToReportAttachedForNode returns the node's list and whether it was flagged, and clears the flag.
	GetVolumesToReportAttachedForNode(node types.NodeName) (bool, []corev1.AttachedVolume)
	// GetNodesToUpdateStatusFor is the flagged nodes, sorted.
	GetNodesToUpdateStatusFor() []types.NodeName
}

// AttachedVolume is an attachment.
type AttachedVolume struct {
	operationexecutor.AttachedVolume
	// Confirmed is false while it is uncertain whether the volume is attached.
	Confirmed bool
	// MountedByNode reports whether the node may have the volume mounted.
	MountedByNode bool
	// DetachRequestedTime is when the volume was found to be no longer wanted, zero if it is.
	DetachRequestedTime time.Time
	// Since is when the attachment became known.
	Since time.Time
}

// Actual is an ActualStateOfWorld in memory, and a Notifier. It has many methods because these interfaces have, and all need
// its lock.
type Actual struct {
	plugins     operationexecutor.PluginFinder
	clock       clock.PassiveClock
	logger      *slog.Logger
	subscribers subscribers

	mu          sync.RWMutex // guards all below
	generation  uint64
	volumes     map[corev1.UniqueVolumeName]map[types.NodeName]*attachment
	nodes       map[types.NodeName]*nodeEntry
	statusDirty map[types.NodeName]struct{}
	total       Count
}

// attachment is one pair of a volume and a node.
type attachment struct {
	spec            *volume.Spec
	devicePath      string
	confirmed       bool
	reported        bool
	mounted         bool
	detachRequested time.Time
	since           time.Time
	generation      uint64
}

// nodeEntry is a node that has attachments, or had some that its status still lists.
type nodeEntry struct {
	volumes map[corev1.UniqueVolumeName]*attachment
	// writing is set from when the list is read for a write until ForgetNode: if the write fails, the node is flagged again.
	writing bool
}

var (
	_ ActualStateOfWorld = (*Actual)(nil)
	_ Notifier           = (*Actual)(nil)
)

// Deps are the dependencies of the actual state of the world. Only Plugins is required.
type Deps struct {
	// Plugins derive the names of volumes from their specs.
	Plugins operationexecutor.PluginFinder
	// Clock defaults to the real clock.
	Clock clock.PassiveClock
	// Logger defaults to one that discards.
	Logger *slog.Logger
}

// NewActualStateOfWorld returns an actual state of the world that has no attachments.
func NewActualStateOfWorld(deps Deps) (*Actual, error) {
	if deps.Plugins == nil {
		return nil, errors.New("attachdetach/cache: Deps.Plugins is required")
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Actual{
		plugins: deps.Plugins, clock: deps.Clock, logger: deps.Logger,
		volumes:     make(map[corev1.UniqueVolumeName]map[types.NodeName]*attachment),
		nodes:       make(map[types.NodeName]*nodeEntry),
		statusDirty: make(map[types.NodeName]struct{}),
		total:       make(Count),
	}, nil
}

// Subscribe implements Notifier.
func (a *Actual) Subscribe(f func(VolumeNode)) { a.subscribers = append(a.subscribers, f) }

// notifyChanged marks the attachment as changed and notifies the subscribers. The caller holds mu.
func (a *Actual) notifyChanged(pair VolumeNode, at *attachment) {
	if at != nil {
		a.generation++
		at.generation = a.generation
	}
	a.subscribers.notify(pair)
}

// AddVolumeNode implements ActualStateOfWorld.
func (a *Actual) AddVolumeNode(name corev1.UniqueVolumeName, spec *volume.Spec, node types.NodeName, devicePath string,
	attached bool,
) (corev1.UniqueVolumeName, error) {
	if name == "" {
		if spec == nil {
			return "", fmt.Errorf("add volume to node %q: it has neither a name nor a spec", node)
		}
		var err error
		if name, err = operationexecutor.UniqueVolumeNameFromSpec(a.plugins, spec); err != nil {
			return "", fmt.Errorf("add volume to node %q: %w", node, err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.volumes[name][node]
	if at == nil {
		at = a.insert(name, node)
	}
	if spec != nil {
		at.spec = spec
	}
	at.confirmed = attached
	if attached {
		if at.devicePath != devicePath && at.reported {
			a.markStatusDirty(node)
		}
		at.devicePath = devicePath
		a.setReported(at, node, true)
	}
	a.notifyChanged(VolumeNode{name, node}, at)
	return name, nil
}

// insert adds a new attachment. The caller holds mu.
func (a *Actual) insert(name corev1.UniqueVolumeName, node types.NodeName) *attachment {
	at := &attachment{mounted: true, since: a.clock.Now()}
	if a.volumes[name] == nil {
		a.volumes[name] = make(map[types.NodeName]*attachment, 1)
	}
	a.volumes[name][node] = at
	if a.nodes[node] == nil {
		a.nodes[node] = &nodeEntry{volumes: make(map[corev1.UniqueVolumeName]*attachment)}
	}
	a.nodes[node].volumes[name] = at
	a.total.add(pluginLabel(name), 1)
	return at
}

// MarkVolumeAsAttached implements operationexecutor.ActualStateOfWorldAttacherUpdater.
func (a *Actual) MarkVolumeAsAttached(name corev1.UniqueVolumeName, spec *volume.Spec, node types.NodeName,
	devicePath string,
) error {
	_, err := a.AddVolumeNode(name, spec, node, devicePath, true)
	return err
}

// MarkVolumeAsUncertain implements operationexecutor.ActualStateOfWorldAttacherUpdater.
func (a *Actual) MarkVolumeAsUncertain(name corev1.UniqueVolumeName, spec *volume.Spec, node types.NodeName) error {
	_, err := a.AddVolumeNode(name, spec, node, "", false)
	return err
}

// MarkVolumeAsDetached implements operationexecutor.ActualStateOfWorldAttacherUpdater.
func (a *Actual) MarkVolumeAsDetached(name corev1.UniqueVolumeName, node types.NodeName) {
	a.DeleteVolumeNode(name, node)
}

// ApplyVerdict implements operationexecutor.ActualStateOfWorldAttacherUpdater.
func (a *Actual) ApplyVerdict(name corev1.UniqueVolumeName, node types.NodeName, generation uint64,
	verdict operationexecutor.Verdict,
) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.volumes[name][node]
	if at == nil || at.generation != generation {
		return false
	}
	switch verdict {
	case operationexecutor.VerdictDetached:
		a.remove(name, node, at)
	case operationexecutor.VerdictUncertain:
		if !at.confirmed {
			return false
		}
		at.confirmed = false
		a.notifyChanged(VolumeNode{name, node}, at)
	case operationexecutor.VerdictAttached:
		return false // only an attach that succeeds confirms an attachment
	}
	return true
}

// DeleteVolumeNode implements ActualStateOfWorld.
func (a *Actual) DeleteVolumeNode(name corev1.UniqueVolumeName, node types.NodeName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.volumes[name][node]; at != nil {
		a.remove(name, node, at)
	}
}

// remove drops the attachment. The caller holds mu.
func (a *Actual) remove(name corev1.UniqueVolumeName, node types.NodeName, at *attachment) {
	a.setReported(at, node, false)
	delete(a.volumes[name], node)
	if len(a.volumes[name]) == 0 {
		delete(a.volumes, name)
	}
	delete(a.nodes[node].volumes, name)
	a.prune(node)
	a.total.add(pluginLabel(name), -1)
	a.notifyChanged(VolumeNode{name, node}, nil)
}

// prune forgets a node without attachments whose status is written. The caller holds mu.
func (a *Actual) prune(node types.NodeName) {
	if entry := a.nodes[node]; entry != nil && len(entry.volumes) == 0 && !entry.writing {
		if _, ok := a.statusDirty[node]; !ok {
			delete(a.nodes, node)
		}
	}
}

// SetVolumesMountedByNode implements ActualStateOfWorld. It costs as much as is mounted and attached on the node.
func (a *Actual) SetVolumesMountedByNode(names []corev1.UniqueVolumeName, node types.NodeName) {
	inUse := make(map[corev1.UniqueVolumeName]struct{}, len(names))
	for _, name := range names {
		inUse[name] = struct{}{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	entry := a.nodes[node]
	if entry == nil {
		return
	}
	for name, at := range entry.volumes {
		if _, mounted := inUse[name]; at.mounted != mounted {
			at.mounted = mounted
			a.subscribers.notify(VolumeNode{name, node})
		}
	}
}

// SetVolumeMountedByNode sets whether the node reports one volume as mounted. An unknown one is ignored.
func (a *Actual) SetVolumeMountedByNode(name corev1.UniqueVolumeName, node types.NodeName, mounted bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.volumes[name][node]; at != nil && at.mounted != mounted {
		at.mounted = mounted
		a.subscribers.notify(VolumeNode{name, node})
	}
}

// ResetDetachRequestTime implements ActualStateOfWorld.
func (a *Actual) ResetDetachRequestTime(name corev1.UniqueVolumeName, node types.NodeName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.volumes[name][node]; at != nil {
		at.detachRequested = time.Time{}
	}
}

// SetDetachRequestTime implements ActualStateOfWorld.
func (a *Actual) SetDetachRequestTime(name corev1.UniqueVolumeName, node types.NodeName) (time.Duration, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.volumes[name][node]
	if at == nil {
		return 0, fmt.Errorf("stamp detach request: volume %q is no longer attached to the node %q", name, node)
	}
	if at.detachRequested.IsZero() {
		at.detachRequested = a.clock.Now()
	}
	return a.clock.Since(at.detachRequested), nil
}
