package provision_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/provision"
)

// backend is storage that counts. It outlives processes; calls from a dead one have no effect.
type backend struct {
	mu      sync.Mutex
	volumes map[string]struct{}
	// late volumes appear some time after the call that asked for them.
	late map[string]struct{}
	busy map[string]bool
	// overlaps counts calls for one volume that met another one.
	overlaps int
	calls    int
	roll     func(int) int
}

func newBackend(roll func(int) int) *backend {
	return &backend{volumes: map[string]struct{}{}, late: map[string]struct{}{}, busy: map[string]bool{}, roll: roll}
}

// tick lets what was begun in the background come to its end.
func (b *backend) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.Copy(b.volumes, b.late)
	clear(b.late)
}

func (b *backend) names() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.volumes))
}

// client is a provisioner that one process has.
type storageClient struct {
	*backend
	process *process
}

var errBackend = errors.New("backend says no")

func (c *storageClient) begin(name string) func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	if c.busy[name] {
		c.overlaps++
	}
	c.busy[name] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.busy, name)
	}
}

func (c *storageClient) Provision(provision.VolumeOptions) (*corev1.PersistentVolume, error) {
	return nil, errors.New("Provision called beside ProvisionExt")
}

func (c *storageClient) ProvisionExt(
	o provision.VolumeOptions,
) (*corev1.PersistentVolume, provision.ProvisioningState, error) {
	defer c.begin(o.PVName)()
	after, err := c.process.enter("backend provision")
	if err != nil {
		return nil, provision.ProvisioningInBackground, err
	}
	c.mu.Lock()
	_, exists := c.volumes[o.PVName]
	_, underway := c.late[o.PVName]
	choice := c.roll(8)
	switch {
	case exists:
	case underway:
		c.mu.Unlock()
		return nil, provision.ProvisioningNoChange, errors.Join(errBackend, after())
	case choice == 0:
		c.mu.Unlock()
		return nil, provision.ProvisioningFinished, errors.Join(errBackend, after())
	case choice == 1:
		c.late[o.PVName] = struct{}{}
		c.mu.Unlock()
		return nil, provision.ProvisioningInBackground, errors.Join(errBackend, after())
	case choice == 2:
		c.volumes[o.PVName] = struct{}{}
		c.mu.Unlock()
		return nil, provision.ProvisioningInBackground, errors.Join(errBackend, after())
	default:
		c.volumes[o.PVName] = struct{}{}
	}
	c.mu.Unlock()
	if err := after(); err != nil {
		return nil, provision.ProvisioningInBackground, err
	}
	return newVolume(o), provision.ProvisioningFinished, nil
}

func (c *storageClient) Delete(pv *corev1.PersistentVolume) error {
	defer c.begin(pv.Name)()
	after, err := c.process.enter("backend delete")
	if err != nil {
		return err
	}
	c.mu.Lock()
	choice := c.roll(6)
	if choice != 0 {
		delete(c.volumes, pv.Name)
	}
	c.mu.Unlock()
	if err := after(); err != nil {
		return err
	}
	if choice <= 1 {
		return errBackend
	}
	return nil
}

// restartable is a controller that can be killed and started again.
type restartable struct {
	t         testing.TB
	api       *fakeAPI
	backend   *backend
	nextFault func(string) fault
	options   []provision.Option

	process *process
	ended   chan struct{}
}

func (l *restartable) start() {
	ctx, cancel := context.WithCancel(l.t.Context())
	l.process = &process{kill: cancel, nextFault: l.nextFault}
	options := append([]provision.Option{
		provision.LeaderElection(false),
		provision.FailedProvisionThreshold(0), provision.FailedDeleteThreshold(0),
		provision.EventRecorder(&record.FakeRecorder{}),
		provision.RateLimiter(workqueue.NewTypedItemExponentialFailureRateLimiter[any](time.Second, time.Minute)),
	}, l.options...)
	c, err := provision.New(l.api.client(l.process), driverName,
		&storageClient{backend: l.backend, process: l.process}, options...)
	require.NoError(l.t, err)
	l.ended = make(chan struct{})
	go func() {
		defer close(l.ended)
		if err := c.RunContext(ctx); err != nil {
			l.t.Errorf("run: %v", err)
		}
	}()
}

func (l *restartable) kill() {
	l.process.mu.Lock()
	l.process.die()
	l.process.mu.Unlock()
	<-l.ended
}

func (l *restartable) dead() bool {
	l.process.mu.Lock()
	defer l.process.mu.Unlock()
	return l.process.dead
}

// isPending returns whether the claim is there and not bound.
func (api *fakeAPI) isPending(t *testing.T, name string) bool {
	t.Helper()
	return slices.ContainsFunc(api.claims(t), func(c corev1.PersistentVolumeClaim) bool {
		return c.Name == name && c.Spec.VolumeName == "" && c.DeletionTimestamp == nil
	})
}

// quiesce takes all faults away and lets the world come to rest.
func (l *restartable) quiesce() {
	l.backend.mu.Lock()
	l.backend.roll = func(n int) int { return n - 1 }
	l.backend.mu.Unlock()
	l.nextFault = nil
	l.kill()
	l.start()
	for range 40 {
		time.Sleep(time.Minute) // the bubble's time
		l.backend.tick()
		l.api.bindAndRelease(l.t)
	}
	synctest.Wait()
}

// check holds the world against what must be true when all is at rest.
func (l *restartable) check(alive []string) {
	l.t.Helper()
	var names, bound []string
	for _, pv := range l.api.volumes(l.t) {
		if !strings.HasPrefix(pv.Name, staticPrefix) {
			names = append(names, pv.Name)
		}
	}
	slices.Sort(names)
	require.Equal(l.t, names, l.backend.names(), "PersistentVolumes and what the backend holds")
	for _, claim := range l.api.claims(l.t) {
		require.Nil(l.t, claim.DeletionTimestamp, "claim %s hangs in deletion", claim.Name)
		require.Empty(l.t, claim.Finalizers, "claim %s", claim.Name)
		require.Equal(l.t, corev1.ClaimBound, claim.Status.Phase, "claim %s", claim.Name)
		bound = append(bound, claim.Name)
	}
	slices.Sort(bound)
	slices.Sort(alive)
	require.Equal(l.t, alive, bound)
	require.Zero(l.t, l.backend.overlaps, "calls for one volume overlapped")
}

// TestNothingLeaks does random things to a controller, its API server and its backend, kills it at random
// moments, and wants the backend to hold exactly the volumes that PersistentVolumes name when all is at rest.
func TestNothingLeaks(t *testing.T) {
	rounds, first := 400, uint64(1)
	if n, err := strconv.Atoi(os.Getenv("BERTH_FAULT_ROUNDS")); err == nil {
		rounds = n
	}
	if n, err := strconv.ParseUint(os.Getenv("BERTH_FAULT_SEED"), 10, 64); err == nil {
		first, rounds = n, 1
	}
	for seed := first; seed < first+uint64(rounds); seed++ {
		round := func(t *testing.T) { synctest.Test(t, func(t *testing.T) { faultRound(t, seed) }) }
		if !t.Run(fmt.Sprintf("seed%d", seed), round) {
			return
		}
	}
}

func faultRound(t *testing.T, seed uint64) {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, seed))
	roll := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	l := &restartable{t: t, api: newFakeAPI(newClass("fast")), backend: newBackend(roll)}
	if roll(2) == 0 {
		l.options = append(l.options, provision.CreateProvisionedPVLimiter(
			workqueue.NewTypedItemExponentialFailureRateLimiter[any](time.Second, time.Minute)))
	} else {
		l.options = append(l.options, provision.CreateProvisionedPVBackoff(
			wait.Backoff{Duration: time.Second, Factor: 2, Steps: 2}))
	}
	worst := 1 + roll(30)
	l.nextFault = func(what string) fault {
		if what == "list persistentvolumes" || what == "list persistentvolumeclaims" || what == "list storageclasses" {
			return noFault
		}
		switch n := roll(100); {
		case n < worst:
			return failBefore
		case n < 2*worst:
			return failAfter
		case n < 2*worst+2:
			return killBefore
		case n < 2*worst+4:
			return killAfter
		}
		return noFault
	}
	l.start()
	defer func() { l.kill() }()
	claims := 2 + roll(4)
	gone := map[string]bool{}
	for i := range claims {
		l.api.createClaim(t, newClaim(fmt.Sprint("claim", i), "fast"))
	}
	for range 25 {
		time.Sleep(time.Duration(roll(3000)) * time.Millisecond) // the bubble's time
		switch roll(6) {
		case 0:
			name := fmt.Sprint("claim", roll(claims))
			l.api.deleteClaim(t, name)
			gone[name] = true
		case 1:
			l.backend.tick()
		case 2:
			l.kill()
		case 3:
			name := fmt.Sprint("claim", roll(claims))
			if waits := l.api.isPending(t, name); waits && roll(3) == 0 {
				l.api.bindElsewhere(t, name)
			}
		default:
			l.api.bindAndRelease(t)
		}
		if l.dead() {
			<-l.ended
			l.start()
		}
	}
	l.quiesce()
	var alive []string
	for i := range claims {
		if name := fmt.Sprint("claim", i); !gone[name] {
			alive = append(alive, name)
		}
	}
	l.check(alive)
}

// TestKilledAtEveryStep kills the controller before and after every single request of a volume's life, with
// the claim deleted meanwhile and not.
func TestKilledAtEveryStep(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		for _, v := range []fault{killBefore, killAfter, failBefore, failAfter} {
			for at := 0; ; at++ {
				reached := false
				t.Run(fmt.Sprintf("deleted=%v/verdict%d/request%d", deleted, v, at), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) { reached = killAt(t, at, v, deleted) })
				})
				if !reached || t.Failed() {
					break
				}
			}
		}
	}
}

func killAt(t *testing.T, at int, v fault, deleted bool) (reached bool) {
	l := &restartable{t: t, api: newFakeAPI(newClass("fast")), backend: newBackend(func(n int) int { return n - 1 })}
	var seen []string
	l.nextFault = func(what string) fault {
		if slices.Contains([]string{
			"list persistentvolumes", "list persistentvolumeclaims", "list storageclasses"}, what) {
			return noFault
		}
		if seen = append(seen, what); len(seen)-1 == at {
			reached = true
			return v
		}
		return noFault
	}
	l.start()
	defer func() { l.kill() }()
	l.api.createClaim(t, newClaim("claim", "fast"))
	synctest.Wait()
	alive := []string{"claim"}
	if deleted && l.dead() {
		l.api.deleteClaim(t, "claim")
		alive = nil
	}
	l.runWithFaults()
	if !deleted || !reached {
		// the second half of its life
		l.api.deleteClaim(t, "claim")
		alive = nil
		l.runWithFaults()
	}
	l.nextFault = nil
	l.quiesce()
	l.check(alive)
	return reached
}

// runWithFaults lets time pass with the faults left as they are.
func (l *restartable) runWithFaults() {
	for range 20 {
		if l.dead() {
			<-l.ended
			l.start()
		}
		time.Sleep(10 * time.Second) // the bubble's time
		l.backend.tick()
		l.api.bindAndRelease(l.t)
	}
	synctest.Wait()
}
