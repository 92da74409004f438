package resize_test

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/provision/resize"
)

// pool is a driver's storage. It outlives processes.
type pool struct {
	mu    sync.Mutex // guards all below
	able  resize.Abilities
	sizes map[string]int64
	// asked has the sizes that the driver was asked for, in GiB.
	asked []int64
	// refuse is asked for the outcome of each call; with late, a call that fails takes effect all the same.
	refuse func(name string, size int64) (err error, late bool)
	// node is what the answers say of the node.
	node bool
	// extra is how much larger than asked for volumes become.
	extra int64
	// check is called at each call, before anything else.
	check func(name string, size int64)
	wake  func(volume string)
}

func newPool() *pool {
	return &pool{able: resize.Abilities{Controller: true}, sizes: map[string]int64{}, node: true}
}

func (p *pool) set(change func(*pool)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
}

func (p *pool) calls() []int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int64(nil), p.asked...)
}

// connection is what one process has of the driver.
type connection struct {
	*pool
	process *process
}

var _ resize.Driver = (*connection)(nil)

func (c *connection) Abilities(context.Context) (resize.Abilities, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.able, nil
}

func (c *connection) ExpandVolume(_ context.Context, pv *corev1.PersistentVolume, size int64) (resize.Grown, error) {
	after, err := c.process.enter()
	if err != nil {
		return resize.Grown{}, status.Error(codes.Unavailable, err.Error())
	}
	grown, err := c.expand(pv.Spec.CSI.VolumeHandle, size)
	if lost := after(); lost != nil {
		return resize.Grown{}, status.Error(codes.DeadlineExceeded, lost.Error())
	}
	if c.process.answered != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.process.answered(pv.Spec.CSI.VolumeHandle, err)
	}
	return grown, err
}

func (c *connection) expand(name string, size int64) (resize.Grown, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.check != nil {
		c.check(name, size)
	}
	c.asked = append(c.asked, size>>30)
	var err error
	late := true
	if c.refuse != nil {
		err, late = c.refuse(name, size)
	}
	if err == nil || late {
		c.sizes[name] = max(c.sizes[name], size+c.extra)
	}
	if err != nil {
		return resize.Grown{}, err
	}
	return resize.Grown{Capacity: c.sizes[name], NodeNeeded: c.node}, nil
}

func (c *connection) WakeDeletions(ctx context.Context, wake func(string)) error {
	c.mu.Lock()
	c.wake = wake
	c.mu.Unlock()
	<-ctx.Done()
	return nil
}
