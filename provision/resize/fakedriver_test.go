package resize_test

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/provision/resize"
)

// fakeDriver is a driver's storage. It outlives processes.
type fakeDriver struct {
	mu           sync.Mutex // guards all below
	capabilities resize.Capabilities
	sizes        map[string]int64
	// requests has the sizes that the driver was asked for, in GiB.
	requests []int64
	// fail is asked for the outcome of each call; with late, a call that fails takes effect all the same.
	fail func(name string, size int64) (err error, late bool)
	// node is what the answers say of the node.
	node bool
	// extra is how much larger than asked for volumes become.
	extra int64
	// check is called at each call, before anything else.
	check  func(name string, size int64)
	notify func(volume string)
}

func newFakeDriver() *fakeDriver {
	return &fakeDriver{capabilities: resize.Capabilities{Controller: true}, sizes: map[string]int64{}, node: true}
}

func (p *fakeDriver) set(change func(*fakeDriver)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

func (p *fakeDriver) calls() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int64(nil), p.requests...)
}

// driverConn is what one process has of the driver.
type driverConn struct {
	*fakeDriver
	process *process
}

var _ resize.Driver = (*driverConn)(nil)

func (c *driverConn) Capabilities(context.Context) (resize.Capabilities, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.capabilities, nil
}

func (c *driverConn) ExpandVolume(_ context.Context, pv *corev1.PersistentVolume, size int64) (resize.ExpandResult, error) {
	after, err := c.process.enter()
	if err != nil {
		return resize.ExpandResult{}, status.Error(codes.Unavailable, err.Error())
	}
	grown, err := c.expand(pv.Spec.CSI.VolumeHandle, size)
	if lost := after(); lost != nil {
		return resize.ExpandResult{}, status.Error(codes.DeadlineExceeded, lost.Error())
	}
	if c.process.onResponse != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.process.onResponse(pv.Spec.CSI.VolumeHandle, err)
	}
	return grown, err
}

func (c *driverConn) expand(name string, size int64) (resize.ExpandResult, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.check != nil {
		c.check(name, size)
	}
	c.requests = append(c.requests, size>>30)
	var err error
	late := true
	if c.fail != nil {
		err, late = c.fail(name, size)
	}
	if err == nil || late {
		c.sizes[name] = max(c.sizes[name], size+c.extra)
	}
	if err != nil {
		return resize.ExpandResult{}, err
	}
	return resize.ExpandResult{Capacity: c.sizes[name], NodeExpansionRequired: c.node}, nil
}

func (c *driverConn) NotifyDetached(ctx context.Context, notify func(string)) error {
	c.mu.Lock()
	c.notify = notify
	c.mu.Unlock()
	<-ctx.Done()
	return nil
}
