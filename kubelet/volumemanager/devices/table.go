// Package devices keeps track of this node's devices: which volumes are attached to it and staged on it, and for which
// Pods. It reports which volumes are in use, waits for attachments, and unstages the devices that no Pod uses any more.
//
// A device is in use from the moment a Pod acquires it until it is unstaged. All operations on one device, whichever
// Pods they are for, run one at a time under its Key.
package devices

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/volume"
)

// opUnstage is the kind of the operation that unstages a device.
const opUnstage = "unstage"

// NodeStatus writes this Node's status. *node.Manager implements it.
type NodeStatus interface {
	// SetVolumesInUse returns when the API server has stored that these volumes, and no others, are in use.
	SetVolumesInUse(ctx context.Context, volumes []corev1.UniqueVolumeName) error
}

// Deps holds what a Table uses. All but Node is required.
type Deps struct {
	// Node writes status.volumesInUse. If it is nil, volumes that must be attached are rejected.
	Node NodeStatus
	// Operations runs the operations on devices. Its user runs further ones under the keys of Key.
	Operations *keyed.Executor
	// MeasureUnstage calls unstage and records its duration. plugin is the qualified name of the volume plugin; block
	// reports whether the device is used as a block device.
	MeasureUnstage func(ctx context.Context, plugin string, block bool, unstage func(context.Context) error) error
	Clock          clock.Clock
	Logger         *slog.Logger
}

// Table holds the devices of this node. It is safe for concurrent use.
type Table struct {
	deps          Deps
	inUseChanged  wakeup.Signal    // the list of volumes in use may have changed
	unstageQueued wakeup.Signal    // unused may not be empty
	attachChanged wakeup.Broadcast // reportedGeneration or attached changed
	retry         wakeup.Broadcast // what failed may succeed now

	mu                 sync.Mutex // guards all below
	byName             map[string]*device
	unused             map[string]struct{} // devices without users that have to be unstaged
	inUseGeneration    int64               // counts the changes of the list of volumes in use
	reportedGeneration int64               // the change that the API server has stored
	attached           map[string]string   // by device, its path, from the Node's status.volumesAttached
}

// device is one device. The fields are guarded by the mutex of the Table.
type device struct {
	volume.Device
	plugin          volume.Attachable
	users           map[VolumeRef]struct{}
	freed           wakeup.Broadcast // a user released the device
	inUseGeneration int64            // the change with which the device came into use
	staged          bool             // Stage succeeded in this process
	stageStarted    bool             // Stage has begun, in this process or an earlier one
	unstaging       bool             // a goroutine unstages it
	wantedLabel     string           // Label.Wanted of its users; that of the device, SELinuxLabel, is the one it is staged with
}

// Label is the SELinux label of a volume.
type Label struct {
	// Wanted is the label of the containers that use the volume, Mounted the one that it is mounted with: the same, or empty
	// if volumes like this one are not mounted with a label.
	Wanted, Mounted string
	// Supported says that the volume can be mounted with a label: then all its Pods have to want the same, or none.
	Supported bool
}

// LabelConflictError means that a volume is used by another Pod with another SELinux label.
type LabelConflictError struct {
	Device, Has, Wanted string
	// Freed is closed when a Pod has released the device.
	Freed <-chan struct{}
}

// Error implements error.
func (e *LabelConflictError) Error() string {
	return fmt.Sprintf("conflicting SELinux labels of volume %s: it is used by another pod with %q, and this pod wants %q",
		e.Device, e.Has, e.Wanted)
}

// VolumeRef is a volume of a Pod that uses a device.
type VolumeRef struct {
	PodUID types.UID
	Dir    string // the volume's directory
}

// InUseError means that a ReadWriteOncePod volume is used by another Pod.
type InUseError struct {
	Device string
	// Freed is closed when a Pod has released the device.
	Freed <-chan struct{}
}

// Error implements error. Kubernetes' conformance tests expect this text.
func (e *InUseError) Error() string {
	return "volume uses the ReadWriteOncePod access mode and is already in use by another pod: " + e.Device
}

// New returns a Table without devices.
func New(deps Deps) *Table {
	return &Table{
		deps: deps, inUseChanged: wakeup.NewSignal(), unstageQueued: wakeup.NewSignal(),
		byName: make(map[string]*device), unused: make(map[string]struct{}),
	}
}

// Key returns the key of operations on a device.
func Key(name string) keyed.Key { return keyed.Key{Object: "device " + name} }

// Start reports the volumes in use and unstages unused devices until ctx ends.
func (t *Table) Start(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	loops.Go(contain.Loop(ctx, "devices.unstageLoop", "", t.unstageLoop))
	t.reportInUseLoop(ctx)
}

// Acquire records that a volume of a Pod uses the device. It may be called again for the same volume. If the volume is
// exclusive and another Pod uses it, Acquire returns an *InUseError; if it supports labels and another Pod uses it with another
// one, a *LabelConflictError.
func (t *Table) Acquire(plugin volume.Attachable, wanted volume.Device, by VolumeRef, exclusive bool, label Label) error {
	if wanted.Attach && t.deps.Node == nil {
		return fmt.Errorf("use device %q: this node does not report which volumes are in use", wanted.Name)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.getOrCreate(plugin, wanted)
	shared := false
	for other := range known.users {
		shared = shared || other.PodUID != by.PodUID
	}
	switch {
	case shared && exclusive:
		return &InUseError{Device: wanted.Name, Freed: known.freed.Changed()}
	case shared && label.Supported && known.wantedLabel != label.Wanted:
		return &LabelConflictError{
			Device: wanted.Name, Has: known.wantedLabel, Wanted: label.Wanted, Freed: known.freed.Changed(),
		}
	case !shared:
		known.wantedLabel = label.Wanted
	}
	known.users[by] = struct{}{}
	return nil
}

// getOrCreate returns the device and updates what is known about it. The caller holds mu.
func (t *Table) getOrCreate(plugin volume.Attachable, wanted volume.Device) *device {
	known, ok := t.byName[wanted.Name]
	if !ok {
		known = &device{
			Device: volume.Device{Name: wanted.Name}, plugin: plugin, users: make(map[VolumeRef]struct{}),
		}
		t.byName[wanted.Name] = known
	}
	if wanted.Driver != "" { // unknown for a device that was found by a Pod's directory
		known.Driver, known.Block = wanted.Driver, wanted.Block
	}
	// Whether it has to be attached may change until Stage begins: when the driver's CSIDriver object is created.
	if wanted.Attach && !known.Attach || !wanted.Attach && known.Attach && !known.stageStarted {
		known.Attach = wanted.Attach
		t.inUseGeneration++
		known.inUseGeneration = t.inUseGeneration
		t.inUseChanged.Notify()
	}
	return known
}

// NodeChanged records which volumes the Node reports as attached. It does not block.
func (t *Table) NodeChanged(node *corev1.Node) {
	attached := make(map[string]string, len(node.Status.VolumesAttached))
	for _, one := range node.Status.VolumesAttached {
		attached[string(one.Name)] = one.DevicePath
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	same := t.attached != nil && maps.Equal(t.attached, attached)
	t.attached = attached
	if !same {
		t.attachChanged.Notify()
	}
}

// Stage stages the device, unless this process has done so. One that is staged with another SELinux label, which no Pod uses
// any more, is unstaged before. The caller runs it under the device's Key.
func (t *Table) Stage(ctx context.Context, name string, req volume.StageRequest) error {
	t.mu.Lock()
	known, ok := t.byName[name]
	if !ok {
		t.mu.Unlock()
		return fmt.Errorf("stage device %q: no pod uses it any more", name)
	}
	relabel := known.stageStarted && known.SELinuxLabel != req.SELinuxLabel
	staged, device := known.staged && !relabel, known.Device
	known.staged, known.stageStarted = staged, true
	t.mu.Unlock()
	if staged {
		return nil
	}
	if relabel {
		if err := t.callUnstage(ctx, known.plugin, device); err != nil {
			return err
		}
	}
	t.mu.Lock()
	known.SELinuxLabel = req.SELinuxLabel
	t.mu.Unlock()
	if err := known.plugin.Stage(ctx, req); err != nil {
		return err
	}
	t.mu.Lock()
	known.staged = true
	t.mu.Unlock()
	return nil
}

// Release records that a volume does not use the device any more.
func (t *Table) Release(name string, by VolumeRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.byName[name]; ok {
		t.removeUsers(known, func(one VolumeRef) bool { return one == by })
	}
}

// ReleasePod records that no volume of the Pod uses a device any more.
func (t *Table) ReleasePod(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, known := range t.byName {
		t.removeUsers(known, func(one VolumeRef) bool { return one.PodUID == uid })
	}
}

// removeUsers removes users from a device, and queues it for unstaging if none is left. The caller holds mu.
func (t *Table) removeUsers(known *device, remove func(VolumeRef) bool) {
	before := len(known.users)
	maps.DeleteFunc(known.users, func(one VolumeRef, _ struct{}) bool { return remove(one) })
	if len(known.users) == before {
		return
	}
	known.freed.Notify()
	if len(known.users) == 0 {
		t.unused[known.Name] = struct{}{}
		t.unstageQueued.Notify()
	}
}

// Recover adds a device that an earlier process has staged, or may have, and its users.
func (t *Table) Recover(plugin volume.Attachable, found volume.Device, by ...VolumeRef) {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.getOrCreate(plugin, found)
	known.stageStarted = true
	if found.SELinuxLabel != "" {
		known.SELinuxLabel, known.wantedLabel = found.SELinuxLabel, found.SELinuxLabel
	}
	for _, one := range by {
		known.users[one] = struct{}{}
	}
}

// UnstageUnused unstages the devices of earlier processes that no Pod has acquired since.
func (t *Table) UnstageUnused() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, known := range t.byName {
		if len(known.users) == 0 {
			t.unused[name] = struct{}{}
		}
	}
	t.unstageQueued.Notify()
}

// Retry ends the waits for a retry: what failed may succeed now.
func (t *Table) Retry() { t.retry.Notify() }

// RetrySignal returns a channel that the next Retry closes.
func (t *Table) RetrySignal() <-chan struct{} { return t.retry.Changed() }

// Driver returns the driver of a device, empty if it is unknown.
func (t *Table) Driver(name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.byName[name]; ok {
		return known.Driver
	}
	return ""
}

// reportInUseLoop writes the list of volumes in use whenever it changes, until ctx ends.
func (t *Table) reportInUseLoop(ctx context.Context) {
	t.inUseChanged.Notify() // an empty list may have to replace that of an earlier process
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.inUseChanged.C():
		}
		change, list := t.inUse()
		if t.deps.Node == nil {
			continue
		}
		if err := t.deps.Node.SetVolumesInUse(ctx, list); err != nil {
			t.deps.Logger.Debug("failed to write the volumes in use", "error", err)
			return // it fails only when ctx ends
		}
		t.mu.Lock()
		t.reportedGeneration = change
		t.mu.Unlock()
		t.attachChanged.Notify()
	}
}

// inUse returns the volumes in use that have to be attached, and the generation of that list.
func (t *Table) inUse() (generation int64, list []corev1.UniqueVolumeName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, known := range t.byName {
		if known.Attach {
			list = append(list, corev1.UniqueVolumeName(name))
		}
	}
	return t.inUseGeneration, list
}

// unstageLoop unstages devices that have lost their last user, until ctx ends.
func (t *Table) unstageLoop(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.unstageQueued.C():
		}
		for _, known := range t.takeUnused() {
			running.Go(contain.Loop(ctx, "devices.unstage", known.Name, func(ctx context.Context) { t.unstage(ctx, known) }))
		}
	}
}

// takeUnused returns the devices that are to be unstaged and are not being.
func (t *Table) takeUnused() []*device {
	t.mu.Lock()
	defer t.mu.Unlock()
	var unused []*device
	for name := range t.unused {
		if known, ok := t.byName[name]; ok && !known.unstaging {
			known.unstaging = true
			unused = append(unused, known)
		}
	}
	clear(t.unused)
	return unused
}

// unstage retries until the device is unstaged and removed from the table, is used again, or ctx ends.
func (t *Table) unstage(ctx context.Context, known *device) {
	key := Key(known.Name)
	for {
		retry := t.RetrySignal()
		err := t.deps.Operations.Do(ctx, key, opUnstage, func(ctx context.Context) error {
			return t.unstageIfUnused(ctx, known)
		})
		if err == nil || ctx.Err() != nil {
			return
		}
		t.deps.Logger.Warn("failed to unstage volume; retrying", "volume", known.Name, "error", err)
		timer := t.deps.Clock.NewTimer(max(t.deps.Operations.RetryAfter(key, opUnstage), time.Millisecond))
		select {
		case <-timer.C():
		case <-retry:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// unstageIfUnused makes one attempt. It runs under the device's key, so nothing stages the device at the same time.
func (t *Table) unstageIfUnused(ctx context.Context, known *device) error {
	t.mu.Lock()
	used, stageStarted, device := len(known.users) > 0, known.stageStarted, known.Device
	if used {
		known.unstaging = false
		t.mu.Unlock()
		return nil
	}
	known.staged = false
	t.mu.Unlock()
	if stageStarted {
		if err := t.callUnstage(ctx, known.plugin, device); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	known.stageStarted, known.unstaging = false, false
	if len(known.users) > 0 {
		return nil // its next user waits for the key and stages it again
	}
	delete(t.byName, known.Name)
	if known.Attach {
		t.inUseGeneration++
		t.inUseChanged.Notify()
	}
	return nil
}

// Unstage makes one attempt to unstage a device, whether or not a Pod uses it: for a stop of the node.
func (t *Table) Unstage(ctx context.Context, plugin volume.Attachable, device volume.Device) error {
	return t.deps.Operations.Do(ctx, Key(device.Name), opUnstage, func(ctx context.Context) error {
		return t.callUnstage(ctx, plugin, device)
	})
}

func (t *Table) callUnstage(ctx context.Context, plugin volume.Attachable, device volume.Device) error {
	return t.deps.MeasureUnstage(ctx, volume.QualifiedPluginName(plugin.Name(), device.Driver), device.Block,
		func(ctx context.Context) error { return plugin.Unstage(ctx, device.Name) })
}
