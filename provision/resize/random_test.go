package resize_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/provision/resize"
)

// largest is more than the driver gives, in GiB.
const largest = 20

// TestRandom lets people ask for sizes, nodes do their part, requests and calls fail before or after they took effect,
// watches lag and resizers die, and holds these against it all:
//
//   - the driver is asked only for what the claim's status says at that moment, as in progress;
//   - a size whose outcome is open is the only one asked for until there is an answer;
//   - a PersistentVolume never says less than it said, nor more than there is;
//   - once nothing fails any more, every claim gets what it asks for, nothing of the expansion is left, nodes know whether
//     they have to expand it, and no calls and writes are made any more.
//
// RESIZE_SEED repeats a run, RESIZE_RUNS makes more of them.
func TestRandom(t *testing.T) {
	runs := 30
	if text := os.Getenv("RESIZE_RUNS"); text != "" {
		var err error
		runs, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	for range runs {
		seed := uint64(time.Now().UnixNano())
		if text := os.Getenv("RESIZE_SEED"); text != "" {
			var err error
			seed, err = strconv.ParseUint(text, 10, 64)
			require.NoError(t, err)
		}
		synctest.Test(t, func(t *testing.T) {
			newRandomTest(t, seed).run()
		})
		if t.Failed() {
			t.Fatalf("seed %d: RESIZE_SEED=%d go test -run TestRandom", seed, seed)
		}
	}
}

type randomTest struct {
	*fakeAPI
	randomMu sync.Mutex // guards random
	random   *rand.Rand
	names    []string
	noFaults bool
	// unknown has, by claim, the size whose outcome is unknown; calls of dead processes are not counted, because they did not
	// reach the driver.
	unknown map[string]int64
	sizes   map[string]int64 // of the PersistentVolumes, as last seen
	wrong   []string
}

func newRandomTest(t *testing.T, seed uint64) *randomTest {
	c := &randomTest{fakeAPI: newFakeAPI(t), random: rand.New(rand.NewPCG(seed, 1)), unknown: map[string]int64{}, sizes: map[string]int64{}}
	for i := range 4 {
		name := fmt.Sprint("c", i)
		c.names = append(c.names, name)
		c.addClaim(name, func(claim *corev1.PersistentVolumeClaim, _ *corev1.PersistentVolume) {
			if i%2 == 1 {
				claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
			}
		})
		c.sizes[name] = 1 << 30
	}
	c.lag = func() time.Duration { return time.Duration(c.roll(50)) * time.Millisecond }
	c.driver.check, c.driver.fail, c.driver.extra = c.onRequest, c.response, int64(c.random.IntN(2))<<29
	c.driver.node = c.random.IntN(3) > 0
	return c
}

// roll is safe for goroutines of the bubble, whatever they hold.
func (c *randomTest) roll(n int) int {
	c.randomMu.Lock()
	defer c.randomMu.Unlock()
	return c.random.IntN(n)
}

// onRequest checks a call that has reached the driver.
func (c *randomTest) onRequest(name string, size int64) {
	claim := c.claim(name)
	if want := claim.Status.AllocatedResources[corev1.ResourceStorage]; want.Value() != size ||
		stage(claim) != corev1.PersistentVolumeClaimControllerResizeInProgress {
		c.wrong = append(c.wrong, fmt.Sprintf("%s: asked for %d while its status says %s of %s", name, size, stage(claim), &want))
	}
	if open, ok := c.unknown[name]; ok && open != size {
		c.wrong = append(c.wrong, fmt.Sprintf("%s: asked for %d while the outcome of %d is unknown", name, size, open))
	}
	c.unknown[name] = size
}

// response is the driver's. Only what it says for good closes what is open; whether the answer arrives is for the process.
func (c *randomTest) response(name string, size int64) (error, bool) {
	if !c.noFaults && size > largest<<30 {
		return status.Error(codes.OutOfRange, "too large"), false
	}
	if c.noFaults || c.roll(2) == 0 {
		return nil, true
	}
	code := []codes.Code{codes.Internal, codes.ResourceExhausted, codes.FailedPrecondition, codes.DeadlineExceeded,
		codes.Aborted, codes.Unavailable, codes.InvalidArgument}[c.roll(7)]
	late := code == codes.DeadlineExceeded && c.roll(2) == 0
	return status.Error(code, "chaos"), late
}

// onResponse hears of each answer that a resizer got.
func (c *randomTest) onResponse(name string, err error) {
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Aborted, codes.Unavailable, codes.Canceled:
	default:
		delete(c.unknown, name)
	}
}

func (c *randomTest) nextFault() fault {
	if c.noFaults {
		return noFault
	}
	switch c.roll(40) {
	case 0:
		return failBefore
	case 1:
		return failAfter
	case 2:
		return killBefore
	case 3:
		return killAfter
	}
	return noFault
}

func (c *randomTest) process() (stop func(), p *process) {
	p = &process{nextFault: c.nextFault, onResponse: c.onResponse}
	return c.start(p, resize.Deps{}), p
}

func (c *randomTest) run() {
	stop, p := c.process()
	for range 150 {
		name := c.names[c.roll(len(c.names))]
		switch c.roll(6) {
		case 0, 1:
			c.changeRequest(name)
		case 2, 3:
			c.expandOnNode(name)
		}
		time.Sleep(time.Duration(c.roll(3000)) * time.Millisecond) // the bubble's time
		c.watchSizes()
		if p.isDead() {
			stop()
			stop, p = c.process()
		}
	}
	stop()
	c.quiesce()
	require.Empty(c.t, c.wrong)
}

// changeRequest asks for another size, as the API server allows: less only if it is more than there is.
func (c *randomTest) changeRequest(name string) {
	claim := c.claim(name)
	size := gib(1 + c.roll(largest+5))
	if have := claim.Status.Capacity[corev1.ResourceStorage]; size.Cmp(have) > 0 {
		c.request(name, size)
	}
}

func (c *randomTest) watchSizes() {
	c.driver.mu.Lock()
	defer c.driver.mu.Unlock()
	for name, before := range c.sizes {
		now := c.volume(name).Spec.Capacity.Storage().Value()
		if now < before || now > c.driver.sizes[name] {
			c.wrong = append(c.wrong, fmt.Sprintf("%s: its volume says %d after %d, and has %d", name, now, before, c.driver.sizes[name]))
		}
		c.sizes[name] = now
	}
}

// quiesce lets nothing fail any more, also no size be too large, and waits for the end.
func (c *randomTest) quiesce() {
	c.noFaults = true
	stop, _ := c.process()
	for range 5 {
		time.Sleep(2 * time.Hour) // the bubble's time
		for _, name := range c.names {
			c.expandOnNode(name)
		}
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	calls, writes := len(c.driver.calls()), c.patches
	for _, name := range c.names {
		claim := c.claim(name)
		want, have := claim.Spec.Resources.Requests[corev1.ResourceStorage], claim.Status.Capacity[corev1.ResourceStorage]
		require.GreaterOrEqual(c.t, have.Value(), want.Value(), name)
		require.Empty(c.t, stage(claim), name)
		require.Empty(c.t, claim.Status.Conditions, name)
		require.NotContains(c.t, slices.Collect(maps.Keys(c.volume(name).Annotations)), preResize, name)
		require.GreaterOrEqual(c.t, c.driver.sizes[name], want.Value(), name)
		if expansion.IsShared(claim) && have.Cmp(gib(1)) > 0 {
			require.Equal(c.t, c.driver.node, expansion.RequiredOnEveryNode(claim), name)
		}
	}
	time.Sleep(24 * time.Hour)
	synctest.Wait()
	require.Equal(c.t, calls, len(c.driver.calls()), "no calls of the driver")
	require.Equal(c.t, writes, c.patches, "no writes")
	stop()
}
