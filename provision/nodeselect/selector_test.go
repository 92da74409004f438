package nodeselect_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/provision/nodeselect"
)

const (
	driverName = "disks.example.com"
	nodeName   = "node-1"
	zone       = "topology.example.com/zone"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// driver has space for volumes of so many bytes; calls has one value for each question.
type driver struct {
	calls chan struct{}

	mu        sync.Mutex // guards all below
	available int64
	largest   *int64
	err       error
}

func (d *driver) Capacity(context.Context, map[string]string, map[string]string) (int64, *int64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls <- struct{}{}
	return d.available, d.largest, d.err
}

func (d *driver) answer(available int64, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.available, d.err = available, err
}

// fixture is a Selector that waits as long as it may, with a cluster of one node and one class.
type fixture struct {
	*nodeselect.Selector
	t      *testing.T
	api    *fake.Clientset
	clock  *testingclock.FakeClock
	driver *driver
}

func newFixture(t *testing.T, change func(*storagev1.StorageClass)) *fixture {
	t.Helper()
	return newFixtureWith(t, change, nodeselect.Config{DriverName: driverName, NodeName: nodeName})
}

func newFixtureWith(t *testing.T, change func(*storagev1.StorageClass), config nodeselect.Config) *fixture {
	t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "class"}, Provisioner: driverName}
	if change != nil {
		change(class)
	}
	f := &fixture{t: t, clock: testingclock.NewFakeClock(time.Now()), driver: &driver{available: 1 << 30, calls: make(chan struct{}, 100)}}
	f.api = fake.NewClientset(class, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, Labels: map[string]string{zone: "a"}}})
	var err error
	f.Selector, err = nodeselect.New(nodeselect.Deps{
		Client: f.api, Driver: f.driver, Clock: f.clock, Random: func(most time.Duration) time.Duration { return most },
	}, config)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return f
}

func (f *fixture) claim() *corev1.PersistentVolumeClaim {
	f.t.Helper()
	class := "class"
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: "uid",
			Annotations: map[string]string{"volume.kubernetes.io/storage-provisioner": driverName}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}},
	}
	created, err := f.api.CoreV1().PersistentVolumeClaims("ns").Create(f.t.Context(), claim, metav1.CreateOptions{})
	require.NoError(f.t, err)
	return created
}

func (f *fixture) selected() string {
	claim, err := f.api.CoreV1().PersistentVolumeClaims("ns").Get(context.Background(), "claim", metav1.GetOptions{})
	require.NoError(f.t, err)
	return claim.Annotations[volumehelpers.AnnSelectedNode]
}

// pass lets time pass once something waits for it.
func (f *fixture) pass(d time.Duration) {
	f.t.Helper()
	require.Eventually(f.t, f.clock.HasWaiters, time.Minute, time.Millisecond)
	f.clock.Step(d)
}

func (f *fixture) requireSelected(node string) {
	f.t.Helper()
	f.requireInTime(func() bool { return f.selected() == node })
}

// requireInTime lets time pass until the condition holds: a timer that was set while it passed is late by that.
func (f *fixture) requireInTime(condition func() bool) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		f.clock.Step(time.Second)
		return condition()
	}, time.Minute, time.Millisecond)
}

// TestNodeIsSelectedAfterADelay has a claim that comes back without a node, as after a failure of the driver: the delay is twice as long then.
func TestNodeIsSelectedAfterADelay(t *testing.T) {
	f := newFixture(t, nil)
	claim := f.claim()
	f.Consider(claim)
	f.Consider(claim)
	f.pass(nodeselect.DefaultBaseDelay - time.Second)
	require.Empty(t, f.selected())
	require.Empty(t, f.driver.calls)
	f.requireSelected(nodeName)
	require.Len(t, f.driver.calls, 1)

	claim.Annotations[volumehelpers.AnnSelectedNode] = ""
	_, err := f.api.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), claim, metav1.UpdateOptions{})
	require.NoError(t, err)
	f.Consider(claim)
	f.pass(2*nodeselect.DefaultBaseDelay - time.Second)
	require.Empty(t, f.selected())
	f.requireSelected(nodeName)
}

// TestClaimThatComesBackBeforeTheAnswer has a driver that fails so soon that the claim comes back without a node before the answer to the
// write of the node: its next try does not wait for the longest delay, which is very long here.
func TestClaimThatComesBackBeforeTheAnswer(t *testing.T) {
	f := newFixtureWith(t, nil, nodeselect.Config{
		DriverName: driverName, NodeName: nodeName, BaseDelay: time.Second, MaxDelay: 10_000 * time.Hour,
	})
	claim := f.claim()
	var once sync.Once
	f.api.PrependReactor("patch", "persistentvolumeclaims", func(clienttesting.Action) (failed bool, _ runtime.Object, _ error) {
		once.Do(func() {
			f.Consider(claim)
			failed = true
		})
		return failed, claim, nil
	})
	f.Consider(claim)
	f.requireSelected(nodeName)
	require.Len(t, f.driver.calls, 2)
}

func TestFullDriverTriesAgain(t *testing.T) {
	for name, at := range map[string]*driver{
		"full": {available: 1}, "away": {err: errors.New("the driver is away")}, "only small holes": {available: 1 << 50, largest: new(int64)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, nil)
			f.driver.largest = at.largest
			f.driver.answer(at.available, at.err)
			f.Consider(f.claim())
			f.requireInTime(func() bool { return len(f.driver.calls) > 0 })
			require.Empty(t, f.selected())
			f.driver.answer(0, errors.ErrUnsupported)
			f.RetryNow()
			f.requireSelected(nodeName)
		})
	}
}

// TestOtherClaimsAreLeftAlone has claims that get no node here, each with what its try reads last.
func TestOtherClaimsAreLeftAlone(t *testing.T) {
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	for name, change := range map[string]func(*storagev1.StorageClass){
		"waits for its consumer": func(class *storagev1.StorageClass) { class.VolumeBindingMode = &wait },
		"not allowed here": func(class *storagev1.StorageClass) {
			class.AllowedTopologies = []corev1.TopologySelectorTerm{{
				MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zone, Values: []string{"b", "c"}}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, change)
			f.Consider(f.claim())
			f.requireInTime(func() bool {
				for _, action := range f.api.Actions() {
					if action.GetResource().Resource == "storageclasses" {
						return true
					}
				}
				return false
			})
			require.Empty(t, f.selected())
			require.Empty(t, f.driver.calls)
		})
	}
}

func TestClaimsWithoutNeedAreNotRead(t *testing.T) {
	f := newFixture(t, nil)
	claim := f.claim()
	for _, change := range []func(*corev1.PersistentVolumeClaim){
		func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "bound" },
		func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil },
		func(c *corev1.PersistentVolumeClaim) { c.Annotations[volumehelpers.AnnSelectedNode] = "other" },
		func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{Time: f.clock.Now()} },
	} {
		other := claim.DeepCopy()
		other.Name = "other"
		change(other)
		f.Consider(other)
	}
	f.Consider(claim)
	f.requireSelected(nodeName) // what had been considered before was looked at before
	for _, action := range f.api.Actions() {
		if get, ok := action.(clienttesting.GetAction); ok {
			require.NotEqual(t, "other", get.GetName())
		}
	}
}

func TestBadConfig(t *testing.T) {
	deps := nodeselect.Deps{Client: fake.NewClientset(), Driver: &driver{}}
	for _, config := range []nodeselect.Config{
		{}, {DriverName: driverName}, {DriverName: driverName, NodeName: nodeName, BaseDelay: -1},
		{DriverName: driverName, NodeName: nodeName, BaseDelay: 2, MaxDelay: 1},
	} {
		_, err := nodeselect.New(deps, config)
		require.Error(t, err, "%+v", config)
	}
	_, err := nodeselect.New(nodeselect.Deps{}, nodeselect.Config{DriverName: driverName, NodeName: nodeName})
	require.Error(t, err)
}
