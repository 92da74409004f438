package volumemanager

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

	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/volume"
)

// NodeStatus writes this Node's status. *node.Manager is one.
type NodeStatus interface {
	// SetVolumesInUse returns when the API server knows that these volumes are in use, and no others.
	SetVolumesInUse(ctx context.Context, volumes []corev1.UniqueVolumeName) error
}

// deviceTable keeps the devices of this node: what is attached to it and staged on it, and for whom. A device is in use
// from the moment that somebody asks for it until it was unstaged. It is safe for concurrent use.
type deviceTable struct {
	node          NodeStatus
	exec          *keyed.Executor
	metrics       opMetrics
	clock         clock.Clock
	logger        *slog.Logger
	inUseChanged  chan struct{} // has a value when what is in use may have changed
	unstageQueued chan struct{} // has a value when idle may not be empty

	mu                 sync.Mutex // guards all below
	byName             map[string]*device
	idle               map[string]struct{} // devices without users that are to be unstaged
	inUseGeneration    int64               // counts changes of what is in use
	reportedGeneration int64               // the change that the API server knows of
	attached           map[string]string   // what the Node says is attached, and where
	attachedCh         chan struct{}       // closed, and made anew, when written or attached changes
	retryCh            chan struct{}       // closed, and made anew, when it is worth trying again what failed
}

// device is one of them. The fields are guarded by the mutex of devices.
type device struct {
	volume.Device
	plugin          volume.Attachable
	users           map[volumeRef]struct{}
	freedCh         chan struct{} // closed, and made anew, when a user goes
	inUseGeneration int64         // the change by which it came into use
	staged          bool          // Stage succeeded in this process
	stageStarted    bool          // Stage has begun, in this process or an earlier one
	unstaging       bool          // a goroutine unstages it
}

// volumeRef is a volume of a Pod that is made of a device.
type volumeRef struct {
	uid types.UID
	dir string
}

// inUseError says that a volume that only one Pod may use is used by another one.
type inUseError struct {
	device string
	freed  <-chan struct{} // closed when a user of the device has gone
}

// Error implements error.
func (e *inUseError) Error() string {
	// Upstream's words, which its suite waits for; the volume comes after them.
	return "volume uses the ReadWriteOncePod access mode and is already in use by another pod: " + e.device
}

func newDeviceTable(
	node NodeStatus, exec *keyed.Executor, meter opMetrics, clock clock.Clock, log *slog.Logger,
) *deviceTable {
	return &deviceTable{
		node: node, exec: exec, metrics: meter, clock: clock, logger: log,
		inUseChanged: make(chan struct{}, 1), unstageQueued: make(chan struct{}, 1),
		byName: make(map[string]*device), idle: make(map[string]struct{}),
		attachedCh: make(chan struct{}), retryCh: make(chan struct{}),
	}
}

// deviceKey is the key under which operations on a device exclude each other, whichever Pods they are for.
func deviceKey(name string) keyed.Key {
	return keyed.Key{Object: "device " + name}
}

// acquire notes that the volume of a Pod is going to use the device. It is fine to do so again.
func (d *deviceTable) acquire(plugin volume.Attachable, wanted volume.Device, by volumeRef, exclusive bool) error {
	if wanted.Attach && d.node == nil {
		return fmt.Errorf("use device %q: this node does not report which volumes are in use", wanted.Name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.getOrCreate(plugin, wanted)
	if exclusive {
		for other := range known.users {
			if other.uid != by.uid {
				return &inUseError{device: wanted.Name, freed: known.freedCh}
			}
		}
	}
	known.users[by] = struct{}{}
	return nil
}

// getOrCreate finds or makes the device. The caller holds mu.
func (d *deviceTable) getOrCreate(plugin volume.Attachable, wanted volume.Device) *device {
	known, ok := d.byName[wanted.Name]
	if !ok {
		known = &device{Device: volume.Device{Name: wanted.Name}, plugin: plugin, users: make(map[volumeRef]struct{}),
			freedCh: make(chan struct{})}
		d.byName[wanted.Name] = known
	}
	if wanted.Driver != "" { // a directory of a Pod does not tell of it
		known.Driver, known.Block = wanted.Driver, wanted.Block
	}
	// What needs attaching may change until the device is touched: when the driver's CSIDriver object appears.
	if wanted.Attach && !known.Attach || !wanted.Attach && known.Attach && !known.stageStarted {
		known.Attach = wanted.Attach
		d.inUseGeneration++
		known.inUseGeneration = d.inUseGeneration
		signal(d.inUseChanged)
	}
	return known
}

// onNodeChanged takes what the Node says is attached.
func (d *deviceTable) onNodeChanged(node *corev1.Node) {
	attached := make(map[string]string, len(node.Status.VolumesAttached))
	for _, one := range node.Status.VolumesAttached {
		attached[string(one.Name)] = one.DevicePath
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	same := d.attached != nil && len(d.attached) == len(attached)
	for name, path := range attached {
		if have, ok := d.attached[name]; !ok || have != path {
			same = false
		}
	}
	d.attached = attached
	if !same {
		d.broadcast()
	}
}

// broadcast wakes all who wait. The caller holds mu.
func (d *deviceTable) broadcast() {
	close(d.attachedCh)
	d.attachedCh = make(chan struct{})
}

// stage makes the device usable, unless this process has done so. The caller holds the device's key.
func (d *deviceTable) stage(ctx context.Context, name string, req volume.StageRequest) error {
	d.mu.Lock()
	known, ok := d.byName[name]
	if !ok {
		d.mu.Unlock()
		return fmt.Errorf("stage device %q: nobody uses it any more", name)
	}
	staged := known.staged
	known.stageStarted = true
	d.mu.Unlock()
	if staged {
		return nil
	}
	if err := known.plugin.Stage(ctx, req); err != nil {
		return err
	}
	d.mu.Lock()
	known.staged = true
	d.mu.Unlock()
	return nil
}

// release notes that a volume does not use the device any more.
func (d *deviceTable) release(name string, by volumeRef) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.byName[name]; ok {
		d.removeUsers(known, func(one volumeRef) bool { return one == by })
	}
}

// releasePod notes that no volume of the Pod uses a device any more.
func (d *deviceTable) releasePod(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, known := range d.byName {
		d.removeUsers(known, func(one volumeRef) bool { return one.uid == uid })
	}
}

// removeUsers takes users away from a device. The caller holds mu.
func (d *deviceTable) removeUsers(known *device, gone func(volumeRef) bool) {
	before := len(known.users)
	maps.DeleteFunc(known.users, func(one volumeRef, _ struct{}) bool { return gone(one) })
	if len(known.users) == before {
		return
	}
	close(known.freedCh)
	known.freedCh = make(chan struct{})
	if len(known.users) == 0 {
		d.idle[known.Name] = struct{}{}
		signal(d.unstageQueued)
	}
}

// recover notes a device that an earlier process has staged, or may have.
func (d *deviceTable) recover(plugin volume.Attachable, found volume.Device, by ...volumeRef) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.getOrCreate(plugin, found)
	known.stageStarted = true
	for _, one := range by {
		known.users[one] = struct{}{}
	}
}

// unstageUnused has the devices unstaged that an earlier process left and that nobody wants.
func (d *deviceTable) unstageUnused() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, known := range d.byName {
		if len(known.users) == 0 {
			d.idle[name] = struct{}{}
		}
	}
	signal(d.unstageQueued)
}

// retry makes it worth trying again what failed.
func (d *deviceTable) retry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.retryCh)
	d.retryCh = make(chan struct{})
}

// retrySignal is closed when it is worth trying again what fails from now on.
func (d *deviceTable) retrySignal() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.retryCh
}

// reportInUseLoop keeps the list of volumes in use written until ctx ends.
func (d *deviceTable) reportInUseLoop(ctx context.Context) {
	signal(d.inUseChanged) // a list of an earlier process may have to be replaced by an empty one
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.inUseChanged:
		}
		d.mu.Lock()
		change := d.inUseGeneration
		var list []corev1.UniqueVolumeName
		for name, known := range d.byName {
			if known.Attach {
				list = append(list, corev1.UniqueVolumeName(name))
			}
		}
		d.mu.Unlock()
		if d.node == nil {
			continue
		}
		if err := d.node.SetVolumesInUse(ctx, list); err != nil {
			d.logger.Debug("the volumes in use were not written", "error", err)
			return // only ctx ends it
		}
		d.mu.Lock()
		d.reportedGeneration = change
		d.broadcast()
		d.mu.Unlock()
	}
}

// unstageLoop unstages devices that have lost their last user, until ctx ends.
func (d *deviceTable) unstageLoop(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.unstageQueued:
		}
		d.mu.Lock()
		for name := range d.idle {
			if known, ok := d.byName[name]; ok && !known.unstaging {
				known.unstaging = true
				running.Go(func() { d.unstage(ctx, known) })
			}
		}
		clear(d.idle)
		d.mu.Unlock()
	}
}

// unstage tries until the device is unstaged and forgotten, or is used again, or ctx ends.
func (d *deviceTable) unstage(ctx context.Context, known *device) {
	key := deviceKey(known.Name)
	for {
		retry := d.retrySignal()
		err := d.exec.Do(ctx, key, opUnstage, func(ctx context.Context) error { return d.unstageIfUnused(ctx, known) })
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			return
		}
		d.logger.Warn("cannot unstage volume, trying again", "volume", known.Name, "error", err)
		timer := d.clock.NewTimer(max(d.exec.RetryAfter(key, opUnstage), time.Millisecond))
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

// unstageIfUnused makes one attempt. It runs under the device's key, so nobody stages meanwhile.
func (d *deviceTable) unstageIfUnused(ctx context.Context, known *device) error {
	d.mu.Lock()
	used, touched, device := len(known.users) > 0, known.stageStarted, known.Device
	if used {
		known.unstaging = false
		d.mu.Unlock()
		return nil
	}
	known.staged = false
	d.mu.Unlock()
	if touched {
		if err := d.callUnstage(ctx, known.plugin, device); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known.stageStarted, known.unstaging = false, false
	if len(known.users) > 0 {
		return nil // its next user waits for the key, and stages it anew
	}
	delete(d.byName, known.Name)
	if known.Attach {
		d.inUseGeneration++
		signal(d.inUseChanged)
	}
	return nil
}

// callUnstage calls the plugin.
func (d *deviceTable) callUnstage(ctx context.Context, plugin volume.Attachable, device volume.Device) error {
	return d.metrics.run(ctx, volume.QualifiedPluginName(plugin.Name(), device.Driver), measuredUnstage, device.Block,
		func(ctx context.Context) error { return plugin.Unstage(ctx, device.Name) })
}

// driverOf is the driver of a device, empty if it is not known.
func (d *deviceTable) driverOf(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.byName[name]; ok {
		return known.Driver
	}
	return ""
}

// signal puts a value into a channel of one, unless there is one.
func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
