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

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// NodeStatus writes this Node's status. *node.Manager is one.
type NodeStatus interface {
	// SetVolumesInUse returns when the API server knows that these volumes are in use, and no others.
	SetVolumesInUse(ctx context.Context, volumes []corev1.UniqueVolumeName) error
}

// devices keeps the devices of this node: what is attached to it and staged on it, and for whom. A device is in use
// from the moment that somebody asks for it until it was unstaged. It is safe for concurrent use.
type devices struct {
	node  NodeStatus
	exec  *operationexecutor.Keyed
	meter meter
	clock clock.Clock
	log   *slog.Logger
	wake  chan struct{} // has a value when what is in use may have changed
	rest  chan struct{} // has a value when idle may not be empty

	mu       sync.Mutex // guards all below
	byName   map[string]*device
	idle     map[string]struct{} // devices without users that are to be unstaged
	listed   int64               // counts changes of what is in use
	written  int64               // the change that the API server knows of
	attached map[string]string   // what the Node says is attached, and where
	changed  chan struct{}       // closed, and made anew, when written or attached changes
	cure     chan struct{}       // closed, and made anew, when it is worth trying again what failed
}

// device is one of them. The fields are guarded by the mutex of devices.
type device struct {
	volume.Device
	plugin  volume.Attachable
	users   map[user]struct{}
	freed   chan struct{} // closed, and made anew, when a user goes
	listed  int64         // the change by which it came into use
	staged  bool          // Stage succeeded in this process
	touched bool          // Stage has begun, in this process or an earlier one
	ending  bool          // a goroutine unstages it
}

// user is a volume of a Pod that is made of a device.
type user struct {
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

func newDevices(
	node NodeStatus, exec *operationexecutor.Keyed, meter meter, clock clock.Clock, log *slog.Logger,
) *devices {
	return &devices{
		node: node, exec: exec, meter: meter, clock: clock, log: log,
		wake: make(chan struct{}, 1), rest: make(chan struct{}, 1),
		byName: make(map[string]*device), idle: make(map[string]struct{}),
		changed: make(chan struct{}), cure: make(chan struct{}),
	}
}

// deviceKey is the key under which operations on a device exclude each other, whichever Pods they are for.
func deviceKey(name string) operationexecutor.Key {
	return operationexecutor.Key{Object: "device " + name}
}

// acquire notes that the volume of a Pod is going to use the device. It is fine to do so again.
func (d *devices) acquire(plugin volume.Attachable, wanted volume.Device, by user, exclusive bool) error {
	if wanted.Attach && d.node == nil {
		return fmt.Errorf("use device %q: this node does not report which volumes are in use", wanted.Name)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.find(plugin, wanted)
	if exclusive {
		for other := range known.users {
			if other.uid != by.uid {
				return &inUseError{device: wanted.Name, freed: known.freed}
			}
		}
	}
	known.users[by] = struct{}{}
	return nil
}

// find finds or makes the device. The caller holds mu.
func (d *devices) find(plugin volume.Attachable, wanted volume.Device) *device {
	known, ok := d.byName[wanted.Name]
	if !ok {
		known = &device{Device: volume.Device{Name: wanted.Name}, plugin: plugin, users: make(map[user]struct{}),
			freed: make(chan struct{})}
		d.byName[wanted.Name] = known
	}
	if wanted.Driver != "" { // a directory of a Pod does not tell of it
		known.Driver, known.Block = wanted.Driver, wanted.Block
	}
	// What needs attaching may change until the device is touched: when the driver's CSIDriver object appears.
	if wanted.Attach && !known.Attach || !wanted.Attach && known.Attach && !known.touched {
		known.Attach = wanted.Attach
		d.listed++
		known.listed = d.listed
		poke(d.wake)
	}
	return known
}

// nodeChanged takes what the Node says is attached.
func (d *devices) nodeChanged(node *corev1.Node) {
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
func (d *devices) broadcast() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// stage makes the device usable, unless this process has done so. The caller holds the device's key.
func (d *devices) stage(ctx context.Context, name string, req volume.StageRequest) error {
	d.mu.Lock()
	known, ok := d.byName[name]
	if !ok {
		d.mu.Unlock()
		return fmt.Errorf("stage device %q: nobody uses it any more", name)
	}
	staged := known.staged
	known.touched = true
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
func (d *devices) release(name string, by user) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.byName[name]; ok {
		d.drop(known, func(one user) bool { return one == by })
	}
}

// releasePod notes that no volume of the Pod uses a device any more.
func (d *devices) releasePod(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, known := range d.byName {
		d.drop(known, func(one user) bool { return one.uid == uid })
	}
}

// drop takes users away from a device. The caller holds mu.
func (d *devices) drop(known *device, gone func(user) bool) {
	before := len(known.users)
	maps.DeleteFunc(known.users, func(one user, _ struct{}) bool { return gone(one) })
	if len(known.users) == before {
		return
	}
	close(known.freed)
	known.freed = make(chan struct{})
	if len(known.users) == 0 {
		d.idle[known.Name] = struct{}{}
		poke(d.rest)
	}
}

// adopt notes a device that an earlier process has staged, or may have.
func (d *devices) adopt(plugin volume.Attachable, found volume.Device, by ...user) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.find(plugin, found)
	known.touched = true
	for _, one := range by {
		known.users[one] = struct{}{}
	}
}

// unstageLeftovers has the devices unstaged that an earlier process left and that nobody wants.
func (d *devices) unstageLeftovers() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, known := range d.byName {
		if len(known.users) == 0 {
			d.idle[name] = struct{}{}
		}
	}
	poke(d.rest)
}

// retry makes it worth trying again what failed.
func (d *devices) retry() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.cure)
	d.cure = make(chan struct{})
}

// cured is closed when it is worth trying again what fails from now on.
func (d *devices) cured() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cure
}

// report keeps the list of volumes in use written until ctx ends.
func (d *devices) report(ctx context.Context) {
	poke(d.wake) // a list of an earlier process may have to be replaced by an empty one
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		}
		d.mu.Lock()
		change := d.listed
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
			d.log.Debug("the volumes in use were not written", "error", err)
			return // only ctx ends it
		}
		d.mu.Lock()
		d.written = change
		d.broadcast()
		d.mu.Unlock()
	}
}

// unstageIdle unstages devices that have lost their last user, until ctx ends.
func (d *devices) unstageIdle(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.rest:
		}
		d.mu.Lock()
		for name := range d.idle {
			if known, ok := d.byName[name]; ok && !known.ending {
				known.ending = true
				running.Go(func() { d.unstage(ctx, known) })
			}
		}
		clear(d.idle)
		d.mu.Unlock()
	}
}

// unstage tries until the device is unstaged and forgotten, or is used again, or ctx ends.
func (d *devices) unstage(ctx context.Context, known *device) {
	key := deviceKey(known.Name)
	for {
		cured := d.cured()
		err := d.exec.Do(ctx, key, opUnstage, func(ctx context.Context) error { return d.tryUnstage(ctx, known) })
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			return
		}
		d.log.Warn("cannot unstage volume, trying again", "volume", known.Name, "error", err)
		timer := d.clock.NewTimer(max(d.exec.RetryAfter(key, opUnstage), time.Millisecond))
		select {
		case <-timer.C():
		case <-cured:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// tryUnstage makes one attempt. It runs under the device's key, so nobody stages meanwhile.
func (d *devices) tryUnstage(ctx context.Context, known *device) error {
	d.mu.Lock()
	used, touched, device := len(known.users) > 0, known.touched, known.Device
	if used {
		known.ending = false
		d.mu.Unlock()
		return nil
	}
	known.staged = false
	d.mu.Unlock()
	if touched {
		if err := d.unstageOnce(ctx, known.plugin, device); err != nil {
			return err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known.touched, known.ending = false, false
	if len(known.users) > 0 {
		return nil // its next user waits for the key, and stages it anew
	}
	delete(d.byName, known.Name)
	if known.Attach {
		d.listed++
		poke(d.wake)
	}
	return nil
}

// unstageOnce calls the plugin.
func (d *devices) unstageOnce(ctx context.Context, plugin volume.Attachable, device volume.Device) error {
	return d.meter.run(ctx, volume.QualifiedPluginName(plugin.Name(), device.Driver), measuredUnstage, device.Block,
		func(ctx context.Context) error { return plugin.Unstage(ctx, device.Name) })
}

// driverOf is the driver of a device, empty if it is not known.
func (d *devices) driverOf(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.byName[name]; ok {
		return known.Driver
	}
	return ""
}

// poke puts a value into a channel of one, unless there is one.
func poke(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
