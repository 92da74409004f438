package reconciler_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/reconciler"
	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/operationexecutor"
)

// randomFixture is a world in which everything goes wrong now and then: calls fail, or fail and take effect all the same, writes
// of statuses fail, the controller's view of what is mounted is old, and the controller is killed and begins anew.
//
// The judges are the storage, which never may have an exclusive disk on two nodes nor lose one that is mounted, and
// the kubelets, which mount what their node's list says and find it attached.
type randomFixture struct {
	*fixture
	rand  *rand.Rand
	disks []*volume.Spec
	nodes []types.NodeName
	users map[types.UID]podUse
	// records is the pairs for which an attach was begun and no detach has succeeded, as VolumeAttachments are. Guarded
	// by storage.mu; mounted by statuses.mu, which is taken after it.
	records        map[cache.VolumeNode]*volume.Spec
	mounted        map[cache.VolumeNode]bool
	faults         bool
	stopController func()
	// faultRand is used by operations, under storage.mu; writeRand by writes, under statuses.mu.
	faultRand, writeRand *rand.Rand
}

// podUse is a Pod that wants a disk on a node.
type podUse struct {
	pod  *corev1.Pod
	spec *volume.Spec
	node types.NodeName
}

func newRandomFixture(t *testing.T, seed uint64, nodes, disks int) *randomFixture {
	c := &randomFixture{
		fixture: newFixture(t), users: make(map[types.UID]podUse), records: make(map[cache.VolumeNode]*volume.Spec),
		mounted: make(map[cache.VolumeNode]bool), faults: true,
		rand: rand.New(rand.NewPCG(seed, 1)), faultRand: rand.New(rand.NewPCG(seed, 2)), writeRand: rand.New(rand.NewPCG(seed, 3)),
	}
	for i := range disks {
		mode := corev1.ReadWriteOnce
		if i%3 == 0 {
			mode = corev1.ReadWriteMany
		}
		c.disks = append(c.disks, disk(fmt.Sprint("disk", i), mode))
	}
	for i := range nodes {
		name := types.NodeName(fmt.Sprint("node", i))
		c.nodes = append(c.nodes, name)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: string(name)}}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		require.NoError(t, c.fixture.nodes.Update(node))
	}
	c.storage.attach = func(disk string, node types.NodeName) (bool, error) {
		pair := cache.VolumeNode{Volume: unique(disk), Node: node}
		c.records[pair] = c.specOf(disk)
		return c.outcome()
	}
	c.storage.detach = func(disk string, node types.NodeName) (bool, error) {
		pair := cache.VolumeNode{Volume: unique(disk), Node: node}
		c.statuses.withLock(func() {
			if c.mounted[pair] {
				c.storage.problems = append(c.storage.problems, "detaching "+pair.String()+", which is mounted")
			}
		})
		done, err := c.outcome()
		if err == nil {
			delete(c.records, pair)
		}
		return done, err
	}
	c.statuses.fail = func(types.NodeName) error {
		if c.faults && c.writeRand.IntN(10) == 0 {
			return errors.New("write failed")
		}
		return nil
	}
	c.startController()
	return c
}

func (c *randomFixture) specOf(name string) *volume.Spec {
	i, err := strconv.Atoi(name[len("disk"):])
	require.NoError(c.t, err)
	return c.disks[i]
}

// outcome is what becomes of a call: it works, fails, or fails although it took effect.
func (c *randomFixture) outcome() (done bool, err error) {
	if !c.faults {
		return true, nil
	}
	switch c.faultRand.IntN(10) {
	case 0, 1:
		return false, errors.New("failed")
	case 2:
		return true, errors.New("timed out")
	}
	return true, nil
}

// startController starts a controller that knows nothing, and gives it what a controller reads at the start.
func (c *randomFixture) startController() {
	plugins := operationexecutor.Plugins{c.storage}
	c.desired = cache.NewDesiredStateOfWorld(plugins)
	var err error
	c.actual, err = cache.NewActualStateOfWorld(cache.Deps{Plugins: plugins, Clock: c.clock})
	require.NoError(c.t, err)
	c.statuses.withLock(func() { c.statuses.actual = c.actual })
	c.executor, err = operationexecutor.NewOperationExecutor(operationexecutor.Deps{
		Plugins: plugins, Nodes: c.statuses.get, Clock: c.clock,
	}, operationexecutor.Config{})
	require.NoError(c.t, err)
	c.engine, err = reconciler.New(reconciler.Deps{
		Desired: c.desired, Actual: c.actual, Executor: c.executor, Updater: c.statuses, Clock: c.clock,
		Nodes:          corelisters.NewNodeLister(c.fixture.nodes),
		OnForcedDetach: func(string) { c.t.Error("no detach may be forced: all nodes are healthy") },
	}, reconciler.Config{LoopPeriod: time.Hour, MaxWaitForUnmount: maxWait})
	require.NoError(c.t, err)
	for _, node := range c.nodes {
		c.desired.AddNode(node)
		c.statuses.withLock(func() {
			for _, at := range c.statuses.lists[node] {
				_, err := c.actual.AddVolumeNode(at.Name, nil, node, at.DevicePath, true)
				require.NoError(c.t, err)
			}
		})
	}
	c.storage.withLock(func() {
		for pair, spec := range c.records {
			if c.actual.GetAttachState(pair.Volume, pair.Node) == detached {
				require.NoError(c.t, c.actual.MarkVolumeAsUncertain(pair.Volume, spec, pair.Node))
			}
		}
	})
	for _, node := range c.nodes {
		c.reportMounted(node)
	}
	for uid, u := range c.users {
		_, err := c.desired.AddPod(uid, u.pod, u.spec, u.node)
		require.NoError(c.t, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	engine := c.engine
	go func() { done <- engine.Start(ctx) }()
	c.stopController = func() { cancel(); require.NoError(c.t, <-done) }
}

// reportMounted brings the controller's view of the node up to date.
func (c *randomFixture) reportMounted(node types.NodeName) {
	var names []corev1.UniqueVolumeName
	c.statuses.withLock(func() { names = slices.Clone(c.statuses.inUse[node]) })
	c.actual.SetVolumesMountedByNode(names, node)
}

// kubelet does what the node's kubelet does: it says what it is going to use, mounts what is listed, and unmounts what
// no Pod uses before it says so.
func (c *randomFixture) kubelet(node types.NodeName) {
	want := make(map[corev1.UniqueVolumeName]bool)
	for _, u := range c.users {
		if u.node == node {
			want[unique(u.spec.Name)] = true
		}
	}
	c.storage.mu.Lock()
	defer c.storage.mu.Unlock()
	c.statuses.mu.Lock()
	defer c.statuses.mu.Unlock()
	for _, at := range c.statuses.lists[node] {
		pair := cache.VolumeNode{Volume: at.Name, Node: node}
		if want[at.Name] && slices.Contains(c.statuses.inUse[node], at.Name) && !c.mounted[pair] {
			c.mounted[pair] = true
			if !c.storage.on[string(at.Name[len("test/disk/"):])][node] {
				c.storage.problems = append(c.storage.problems, "mounting "+pair.String()+", which is not attached")
			}
		}
	}
	var inUse []corev1.UniqueVolumeName
	for name := range want {
		inUse = append(inUse, name)
	}
	for pair := range c.mounted {
		if pair.Node == node && !want[pair.Volume] {
			delete(c.mounted, pair)
		}
	}
	slices.Sort(inUse)
	c.statuses.inUse[node] = inUse
}

// step does one random thing.
func (c *randomFixture) step() {
	node := c.nodes[c.rand.IntN(len(c.nodes))]
	switch n := c.rand.IntN(100); {
	case n < 30: // a Pod comes
		c.pods++
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("p", c.pods), UID: types.UID(fmt.Sprint("uid-", c.pods)),
		}}
		u := podUse{pod: pod, spec: c.disks[c.rand.IntN(len(c.disks))], node: node}
		c.users[pod.UID] = u
		_, err := c.desired.AddPod(pod.UID, pod, u.spec, node)
		require.NoError(c.t, err)
	case n < 60: // a Pod goes
		c.deleteRandomPod()
	case n < 80:
		c.kubelet(node)
	case n < 92:
		c.reportMounted(node)
	case n < 99:
		c.clock.Step(time.Duration(c.rand.IntN(2000)) * time.Millisecond)
	default:
		if c.rand.IntN(5) == 0 {
			c.stopController()
			c.startController()
		}
	}
}

func (c *randomFixture) deleteRandomPod() {
	var uids []types.UID
	for uid := range c.users {
		uids = append(uids, uid)
	}
	if len(uids) == 0 {
		return
	}
	slices.Sort(uids)
	uid := uids[c.rand.IntN(len(uids))]
	u := c.users[uid]
	delete(c.users, uid)
	c.desired.DeletePod(uid, unique(u.spec.Name), u.node)
}

// stepUntil steps through time until f holds.
func (c *randomFixture) stepUntil(f func() bool, what string) {
	c.t.Helper()
	c.eventually(func() bool {
		for _, node := range c.nodes {
			c.kubelet(node)
			c.reportMounted(node)
		}
		c.clock.Step(time.Second)
		return f()
	}, what)
}

func (c *randomFixture) check() {
	c.t.Helper()
	c.storage.withLock(func() { require.Empty(c.t, c.storage.problems) })
}

func TestChurn(t *testing.T) {
	seed, steps := uint64(time.Now().UnixNano()), 20000
	if text := os.Getenv("CHURN_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	if testing.Short() {
		steps = 3000
	}
	t.Logf("CHURN_SEED=%d", seed)
	c := newRandomFixture(t, seed, 50, 500)
	defer func() { c.stopController() }()
	calls := func() (n int) {
		c.storage.withLock(func() { n = len(c.storage.calls) })
		return n
	}
	for n := 0; n < steps || calls() <= steps/50; n++ { // or the steps are over before the reconciler has done much
		c.step()
		runtime.Gosched()
	}
	c.check()
	t.Logf("%d calls to the storage", calls())

	// Every shared disk that is wanted gets attached, and every exclusive one to one of the nodes that want it.
	c.storage.withLock(func() { c.statuses.withLock(func() { c.faults = false }) })
	c.stepUntil(func() bool {
		for _, u := range c.users {
			nodes := c.actual.GetNodesForAttachedVolume(unique(u.spec.Name))
			if len(nodes) == 0 || operationexecutor.IsMultiAttachAllowed(u.spec) && !slices.Contains(nodes, u.node) {
				return false
			}
		}
		return true
	}, "everything that can be attached must be")
	c.check()

	// When no Pod uses a volume, nothing is left anywhere.
	for len(c.users) > 0 {
		c.deleteRandomPod()
	}
	c.stepUntil(func() bool {
		left := len(c.actual.GetAttachedVolumes())
		c.storage.withLock(func() {
			left += len(c.records)
			for _, nodes := range c.storage.on {
				left += len(nodes)
			}
			c.statuses.withLock(func() {
				for _, list := range c.statuses.lists {
					left += len(list)
				}
			})
		})
		return left == 0
	}, "nothing may be left")
	c.check()
}
