package csinode_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/csinode"
	"github.com/berth-dev/berth/kubelet/pluginmanager"
	"github.com/berth-dev/berth/volume/csi"
	"github.com/berth-dev/berth/volume/csi/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type fixture struct {
	*csinode.Manager
	t        *testing.T
	client   *kubefake.Clientset
	drivers  *csi.Drivers
	calls    *csi.CallMetrics
	clock    *testclock.FakeClock
	mu       sync.Mutex
	notReady error
	current  *corev1.Node
	period   atomic.Int64 // refresh period of all drivers
}

// testTimeout bounds waits for what needs no clock.
const testTimeout = time.Minute

func newFixture(t *testing.T) *fixture {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "node-uid"}}
	f := &fixture{t: t, client: kubefake.NewClientset(node), drivers: csi.NewDrivers(), calls: csi.NewCallMetrics(clock.RealClock{}),
		clock: testclock.NewFakeClock(time.Now()), current: node}
	registered := make(chan struct{})
	close(registered)
	var err error
	f.Manager, err = csinode.New(csinode.Deps{
		Client: f.client, Drivers: f.drivers, Calls: f.calls, Registered: registered, Node: func() *corev1.Node {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.current
		},
		RefreshPeriod: func(string) time.Duration { return time.Duration(f.period.Load()) },
		Clock:         f.clock, NotReady: func(err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.notReady = err
		},
	}, csinode.Config{NodeName: "here"})
	require.NoError(t, err)
	return f
}

func (f *fixture) start() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan error, 1)
	go func() { done <- f.Start(ctx) }()
	f.t.Cleanup(func() {
		cancel()
		require.NoError(f.t, <-done)
		f.drivers.Close()
	})
}

func (f *fixture) driver(name string, change ...func(*fake.Config)) pluginmanager.Plugin {
	f.t.Helper()
	base, err := os.MkdirTemp("", "csinode")
	require.NoError(f.t, err)
	config := fake.Config{
		Name: name, NodeID: "id-of-" + name, Dir: filepath.Join(base, "d"), MaxVolumes: 5,
		Topology:     map[string]string{"topology.test/zone": "z1", "topology.test/rack": "r1"},
		Capabilities: []csipb.NodeServiceCapability_RPC_Type{csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME},
	}
	for _, apply := range change {
		apply(&config)
	}
	driver := fake.New(config)
	require.NoError(f.t, driver.Serve(""))
	f.t.Cleanup(func() {
		driver.Stop()
		require.NoError(f.t, os.RemoveAll(base))
	})
	return pluginmanager.Plugin{Type: "CSIPlugin", Name: name, Endpoint: driver.Endpoint(), Versions: []string{"1.0.0"}}
}

func (f *fixture) csiNode() *storagev1.CSINode {
	f.t.Helper()
	object, err := f.client.StorageV1().CSINodes().Get(f.t.Context(), "here", metav1.GetOptions{})
	require.NoError(f.t, err)
	return object
}

func (f *fixture) node() *corev1.Node {
	f.t.Helper()
	object, err := f.client.CoreV1().Nodes().Get(f.t.Context(), "here", metav1.GetOptions{})
	require.NoError(f.t, err)
	return object
}

func TestDriversAreWrittenDown(t *testing.T) {
	f := newFixture(t)
	f.start()
	one, two := f.driver("one"), f.driver("two", func(c *fake.Config) { c.MaxVolumes, c.Topology = 0, nil })
	var wg sync.WaitGroup
	for _, plugin := range []pluginmanager.Plugin{one, two} {
		wg.Go(func() {
			if err := f.Register(t.Context(), plugin); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	object := f.csiNode()
	require.Equal(t, "Node", object.OwnerReferences[0].Kind)
	require.EqualValues(t, "node-uid", object.OwnerReferences[0].UID)
	require.Contains(t, object.Annotations["storage.alpha.kubernetes.io/migrated-plugins"], "kubernetes.io/gce-pd")
	require.ElementsMatch(t, []storagev1.CSINodeDriver{
		{Name: "one", NodeID: "id-of-one", TopologyKeys: []string{"topology.test/rack", "topology.test/zone"},
			Allocatable: &storagev1.VolumeNodeResources{Count: ptr.To(int32(5))}},
		{Name: "two", NodeID: "id-of-two"},
	}, object.Spec.Drivers)
	node := f.node()
	require.JSONEq(t, `{"one":"id-of-one","two":"id-of-two"}`, node.Annotations["csi.volume.kubernetes.io/nodeid"])
	require.Equal(t, "z1", node.Labels["topology.test/zone"])
	for _, name := range []string{"one", "two"} {
		_, err := f.drivers.Get(name)
		require.NoError(t, err)
	}

	writes := len(f.client.Actions())
	require.NoError(t, f.Register(t.Context(), one), "a driver that comes again")
	for _, action := range f.client.Actions()[writes:] {
		require.Equal(t, "get", action.GetVerb(), "what is written already is not written again")
	}
	require.NoError(t, f.Deregister(t.Context(), one))
	require.Len(t, f.csiNode().Spec.Drivers, 1)
	require.JSONEq(t, `{"two":"id-of-two"}`, f.node().Annotations["csi.volume.kubernetes.io/nodeid"])
	_, err := f.drivers.Get("one")
	require.ErrorContains(t, err, "not found in the list of registered CSI drivers")
	require.NoError(t, f.Deregister(t.Context(), one), "twice is fine")
}

// TestCallsOfDriversAreMeasured lets a registration call the driver, and then cancels a call.
// TestAnnotationWithoutDrivers has an annotation that JSON allows, and that names no driver.
func TestAnnotationWithoutDrivers(t *testing.T) {
	f := newFixture(t)
	node := f.node()
	node.Annotations = map[string]string{"csi.volume.kubernetes.io/nodeid": "null"}
	_, err := f.client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
	f.start()
	require.NoError(t, f.Register(t.Context(), f.driver("one")))
	require.JSONEq(t, `{"one":"id-of-one"}`, f.node().Annotations["csi.volume.kubernetes.io/nodeid"])
}

func TestCallsOfDriversAreMeasured(t *testing.T) {
	f := newFixture(t)
	f.start()
	require.NoError(t, f.Register(t.Context(), f.driver("one")))
	driver, err := f.drivers.Get("one")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = driver.NodeInfo(ctx)
	require.Error(t, err)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(f.calls)
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	require.Equal(t, "csi_operations_seconds", families[0].GetName())
	counts := map[string]uint64{}
	for _, metric := range families[0].Metric {
		words := []string{}
		for _, label := range metric.Label {
			words = append(words, label.GetName()+"="+label.GetValue())
		}
		counts[strings.Join(words, " ")] = metric.GetHistogram().GetSampleCount()
	}
	require.Equal(t, map[string]uint64{
		"driver_name=one grpc_status_code=OK method_name=/csi.v1.Node/NodeGetCapabilities migrated=false": 1,
		"driver_name=one grpc_status_code=OK method_name=/csi.v1.Node/NodeGetInfo migrated=false":         1,
		"driver_name=one grpc_status_code=Canceled method_name=/csi.v1.Node/NodeGetInfo migrated=false":   1,
	}, counts)
}

func TestDriversThatCannotBe(t *testing.T) {
	f := newFixture(t)
	f.start()
	old := f.driver("old")
	old.Versions = []string{"0.3.0"}
	require.ErrorContains(t, f.Register(t.Context(), old), "none of which is 1.x")
	nameless := f.driver("nameless", func(c *fake.Config) { c.NodeID = "" })
	require.ErrorContains(t, f.Register(t.Context(), nameless), "node id is empty")
	hostile := f.driver("hostile")
	hostile.Name = "../../etc"
	require.ErrorContains(t, f.Register(t.Context(), hostile), "not a domain name")
	require.NoError(t, f.Register(t.Context(), f.driver("good")))
	moved := f.driver("moved", func(c *fake.Config) { c.Topology = map[string]string{"topology.test/zone": "z2"} })
	require.ErrorContains(t, f.Register(t.Context(), moved), `label topology.test/zone is "z1", but the driver reports "z2"`)
	require.Len(t, f.csiNode().Spec.Drivers, 1)
}

func TestNewNodeGetsEverythingAnew(t *testing.T) {
	f := newFixture(t)
	f.start()
	first := f.node()
	f.NodeChanged(first)
	require.NoError(t, f.Register(t.Context(), f.driver("one")))
	require.NoError(t, f.client.StorageV1().CSINodes().Delete(t.Context(), "here", metav1.DeleteOptions{}))
	second := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "second"}}
	require.NoError(t, f.client.CoreV1().Nodes().Delete(t.Context(), "here", metav1.DeleteOptions{}))
	_, err := f.client.CoreV1().Nodes().Create(t.Context(), second, metav1.CreateOptions{})
	require.NoError(t, err)
	f.mu.Lock()
	f.current = second
	f.mu.Unlock()
	f.NodeChanged(second)
	require.Eventually(t, func() bool {
		object, err := f.client.StorageV1().CSINodes().Get(t.Context(), "here", metav1.GetOptions{})
		return err == nil && len(object.Spec.Drivers) == 1 && object.OwnerReferences[0].UID == "second"
	}, time.Minute, time.Millisecond)
	require.Equal(t, "z1", f.node().Labels["topology.test/zone"])
}

// TestCSINodeOfADeletedNode starts where a Node of the same name was deleted while no kubelet ran: the garbage collector is about to delete the
// CSINode, too.
func TestCSINodeOfADeletedNode(t *testing.T) {
	for _, test := range []struct {
		name    string
		owner   types.UID
		drivers []storagev1.CSINodeDriver
	}{
		{"of the deleted Node", "deleted", []storagev1.CSINodeDriver{}},
		{"of this Node", "node-uid", []storagev1.CSINodeDriver{{Name: "gone", NodeID: "x"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t)
			_, err := f.client.StorageV1().CSINodes().Create(t.Context(), &storagev1.CSINode{
				ObjectMeta: metav1.ObjectMeta{
					Name: "here", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "here", UID: test.owner}},
				},
				Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "gone", NodeID: "x"}}},
			}, metav1.CreateOptions{})
			require.NoError(t, err)
			f.start()
			require.Eventually(t, func() bool {
				object := f.csiNode()
				return object.OwnerReferences[0].UID == "node-uid" && object.Annotations["storage.alpha.kubernetes.io/migrated-plugins"] != ""
			}, testTimeout, time.Millisecond)
			require.Equal(t, test.drivers, f.csiNode().Spec.Drivers)
		})
	}
}

func TestNodeIsNotReadyWithoutItsCSINode(t *testing.T) {
	f := newFixture(t)
	var mu sync.Mutex
	failing := true
	f.client.PrependReactor("create", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		if failing {
			return true, nil, errors.New("no")
		}
		return false, nil, nil
	})
	reason := func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.notReady
	}
	f.start()
	require.Eventually(t, func() bool { return reason() != nil }, time.Minute, time.Millisecond)
	require.ErrorContains(t, reason(), "CSINode is not yet initialized")
	mu.Lock()
	failing = false
	mu.Unlock()
	require.Eventually(t, func() bool {
		f.clock.Step(100 * time.Millisecond)
		return reason() == nil
	}, time.Minute, time.Millisecond)
	f.csiNode()
}
