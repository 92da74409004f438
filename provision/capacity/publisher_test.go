package capacity_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/provision/capacity"
)

const (
	driverName = "disk.example.com"
	topology   = "topology.example.com/node"
	namespace  = "kube-system"
)

// fakeDriver is a driver that has a capacity on each node.
type fakeDriver struct {
	mu        sync.Mutex
	available map[string]int64
	err       error
	calls     int
}

func (p *fakeDriver) Capacity(_ context.Context, parameters, segments map[string]string) (int64, *int64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls++
	if p.err != nil {
		return 0, nil, p.err
	}
	size := p.available[segments[topology]]
	if parts, err := strconv.ParseInt(parameters["parts"], 10, 64); err == nil {
		return size, ptr.To(size / parts), nil
	}
	return size, nil, nil
}

func (p *fakeDriver) set(node string, size int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.available[node], p.err = size, err
}

type fixture struct {
	t      *testing.T
	client *fake.Clientset
	driver *fakeDriver
}

func newNode(name string) []runtime.Object {
	return []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{topology: name}}},
		&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSINodeSpec{
			Drivers: []storagev1.CSINodeDriver{{Name: driverName, NodeID: name, TopologyKeys: []string{topology}}}}},
	}
}

func newClass(name, provisioner string, parameters map[string]string) *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, Parameters: parameters}
}

func newVolume(name, node, size string) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)},
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			CSI: &corev1.CSIPersistentVolumeSource{Driver: driverName, VolumeHandle: name}},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: topology, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}}}},
	}}
}

// run has a Publisher work in a bubble of its own until the end of the test.
func run(t *testing.T, objects []runtime.Object, config capacity.Config, test func(f *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, client: fake.NewClientset(objects...), driver: &fakeDriver{available: map[string]int64{"a": 1000, "b": 2000}}}
		config.DriverName, config.Namespace = driverName, namespace
		p, err := capacity.New(capacity.Deps{Client: f.client, Driver: f.driver, Logger: testlog.New(t, slog.DiscardHandler)}, config)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Start(ctx) }()
		synctest.Wait()
		require.ErrorContains(t, p.Start(ctx), "was started before")
		test(f)
		stop()
		require.NoError(t, <-done)
	})
}

// published is what is published, by class and node.
func (f *fixture) published() map[string]int64 {
	f.t.Helper()
	list, err := f.client.StorageV1().CSIStorageCapacities(namespace).List(f.t.Context(), metav1.ListOptions{})
	require.NoError(f.t, err)
	size := map[string]int64{}
	for _, object := range list.Items {
		size[object.StorageClassName+" "+object.NodeTopology.MatchLabels[topology]] = object.Capacity.Value()
	}
	require.Len(f.t, size, len(list.Items), "two objects with one key")
	return size
}

// writeCount counts the requests that changed the published objects.
func (f *fixture) writeCount() int {
	count := 0
	for _, action := range f.client.Actions() {
		switch action.GetVerb() {
		case "create", "update", "delete", "patch":
			if action.GetResource().Resource == "csistoragecapacities" {
				count++
			}
		}
	}
	return count
}

func TestPublishesEachClassInEachTopology(t *testing.T) {
	owner := &metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "me", UID: "1"}
	objects := append(newNode("a"), newNode("b")...)
	objects = append(objects, newClass("fast", driverName, map[string]string{"parts": "2"}),
		newClass("dust", driverName, map[string]string{"parts": "5000"}), newClass("slow", driverName, nil), newClass("foreign", "other.example.com", nil))
	run(t, objects, capacity.Config{Owner: owner}, func(f *fixture) {
		require.Equal(t, map[string]int64{"fast a": 1000, "fast b": 2000, "dust a": 1000, "dust b": 2000, "slow a": 1000, "slow b": 2000},
			f.published())
		list, err := f.client.StorageV1().CSIStorageCapacities(namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		for _, object := range list.Items {
			require.Equal(t, []metav1.OwnerReference{*owner}, object.OwnerReferences)
			require.Equal(t, map[string]string{
				"csi.storage.k8s.io/drivername": driverName, "csi.storage.k8s.io/managed-by": "berth"}, object.Labels)
			switch object.StorageClassName {
			case "fast":
				require.Equal(t, object.Capacity.Value()/2, object.MaximumVolumeSize.Value())
			case "dust":
				require.NotNil(t, object.MaximumVolumeSize, "without it the scheduler would take the capacity for the largest size")
				require.Zero(t, object.MaximumVolumeSize.Value())
			default:
				require.Nil(t, object.MaximumVolumeSize)
			}
		}
		require.Equal(t, 6, f.writeCount())
	})
}

func TestFollowsVolumesNodesAndClasses(t *testing.T) {
	objects := append(newNode("a"), newNode("b")...)
	objects = append(objects, newClass("fast", driverName, nil), newVolume("old", "a", "1Gi"))
	run(t, objects, capacity.Config{Period: time.Hour}, func(f *fixture) {
		ctx := t.Context()
		f.driver.set("a", 800, nil)
		f.driver.set("b", 1800, nil)
		_, err := f.client.CoreV1().PersistentVolumes().Create(ctx, newVolume("new", "a", "1Gi"), metav1.CreateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, map[string]int64{"fast a": 800, "fast b": 2000}, f.published(), "only the topology of the volume is updated")

		asked := f.driver.calls
		bound := newVolume("new", "a", "1Gi")
		bound.Status.Phase = corev1.VolumeBound
		_, err = f.client.CoreV1().PersistentVolumes().Update(ctx, bound, metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, asked, f.driver.calls, "a change of status does not change the capacity")

		f.driver.set("a", 600, nil)
		_, err = f.client.CoreV1().PersistentVolumes().Update(ctx, newVolume("new", "a", "2Gi"), metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, 600, f.published()["fast a"], "it grew")

		require.NoError(t, f.client.StorageV1().CSINodes().Delete(ctx, "b", metav1.DeleteOptions{}))
		synctest.Wait()
		require.Equal(t, map[string]int64{"fast a": 600}, f.published())

		moved := newNode("a")[0].(*corev1.Node)
		moved.Labels[topology] = "c"
		f.driver.set("c", 300, nil)
		_, err = f.client.CoreV1().Nodes().Update(ctx, moved, metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, map[string]int64{"fast c": 300}, f.published())

		require.NoError(t, f.client.StorageV1().StorageClasses().Delete(ctx, "fast", metav1.DeleteOptions{}))
		synctest.Wait()
		require.Empty(t, f.published())
	})
}

func TestAsksOncePerPeriodAndWritesOnlyChanges(t *testing.T) {
	run(t, append(newNode("a"), newClass("fast", driverName, nil)), capacity.Config{}, func(f *fixture) {
		f.driver.set("a", 995, nil)
		time.Sleep(capacity.DefaultPeriod) // the bubble's time
		synctest.Wait()
		require.EqualValues(t, 1000, f.published()["fast a"], "half a hundredth is no news")
		require.Equal(t, 1, f.writeCount())
		f.driver.set("a", 900, nil)
		time.Sleep(capacity.DefaultPeriod) // the bubble's time
		synctest.Wait()
		require.EqualValues(t, 900, f.published()["fast a"])
		time.Sleep(10 * capacity.DefaultPeriod) // the bubble's time
		synctest.Wait()
		require.Equal(t, 2, f.writeCount())
	})
}

func TestUpdatesObjectsOfAnEarlierProcess(t *testing.T) {
	left := func(name, class, node, manager string) *storagev1.CSIStorageCapacity {
		return &storagev1.CSIStorageCapacity{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: "1", Labels: map[string]string{
				"csi.storage.k8s.io/drivername": driverName, "csi.storage.k8s.io/managed-by": manager}},
			NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{topology: node}}, StorageClassName: class,
			Capacity: resource.NewQuantity(1, resource.BinarySI),
		}
	}
	objects := append(newNode("a"), newClass("fast", driverName, nil),
		left("other-name", "fast", "a", "berth"), left("class-gone", "gone", "a", "berth"),
		left("node-gone", "fast", "z", "berth"), left("not-ours", "fast", "y", "another"))
	run(t, objects, capacity.Config{}, func(f *fixture) {
		require.Equal(t, map[string]int64{"fast a": 1000, "fast y": 1}, f.published())
	})
}

func TestDeletedObjectIsCreatedAgain(t *testing.T) {
	run(t, append(newNode("a"), newClass("fast", driverName, nil)), capacity.Config{}, func(f *fixture) {
		api := f.client.StorageV1().CSIStorageCapacities(namespace)
		list, err := api.List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.NoError(t, api.Delete(t.Context(), list.Items[0].Name, metav1.DeleteOptions{}))
		synctest.Wait()
		require.Equal(t, map[string]int64{"fast a": 1000}, f.published())
	})
}

func TestFailureKeepsTheCapacityAndIsRetried(t *testing.T) {
	objects := append(newNode("a"), newClass("fast", driverName, nil))
	run(t, objects, capacity.Config{Period: time.Hour}, func(f *fixture) {
		f.driver.set("a", 500, errors.New("not now"))
		_, err := f.client.CoreV1().PersistentVolumes().Create(
			t.Context(), newVolume("new", "a", "1Gi"), metav1.CreateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, 1000, f.published()["fast a"])
		f.driver.set("a", 500, nil)
		time.Sleep(2 * time.Second) // the bubble's time
		synctest.Wait()
		require.EqualValues(t, 500, f.published()["fast a"])
	})
}

func TestUnsupportedCapacityIsNotPublished(t *testing.T) {
	run(t, append(newNode("a"), newClass("fast", driverName, nil)), capacity.Config{}, func(f *fixture) {
		f.driver.set("a", 0, errors.ErrUnsupported)
		time.Sleep(capacity.DefaultPeriod) // the bubble's time
		synctest.Wait()
		require.Empty(t, f.published())
	})
}

func TestADriverWithoutTopologyIsEverywhere(t *testing.T) {
	objects := newNode("a")
	objects[1].(*storagev1.CSINode).Spec.Drivers[0].TopologyKeys = nil
	run(t, append(objects, newClass("fast", driverName, nil)), capacity.Config{}, func(f *fixture) {
		list, err := f.client.StorageV1().CSIStorageCapacities(namespace).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		require.NotNil(t, list.Items[0].NodeTopology, "none at all would match no node")
		require.Empty(t, list.Items[0].NodeTopology.MatchLabels)
	})
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	_, err := capacity.New(capacity.Deps{}, capacity.Config{DriverName: driverName, Namespace: namespace})
	require.ErrorContains(t, err, "Deps.Client")
	_, err = capacity.New(capacity.Deps{Client: fake.NewClientset(), Driver: &fakeDriver{}}, capacity.Config{})
	require.ErrorContains(t, err, "Config.DriverName")
}

func TestCSIDriverIsTheDefaultOwner(t *testing.T) {
	run(t, append(newNode("a"), newClass("fast", driverName, nil)), capacity.Config{}, func(f *fixture) {
		owners := func() []metav1.OwnerReference {
			list, err := f.client.StorageV1().CSIStorageCapacities(namespace).List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Len(t, list.Items, 1)
			return list.Items[0].OwnerReferences
		}
		require.Empty(t, owners(), "there is no such object yet")
		for _, uid := range []types.UID{"first", "second"} {
			_, err := f.client.StorageV1().CSIDrivers().Create(t.Context(),
				&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: driverName, UID: uid}}, metav1.CreateOptions{})
			require.NoError(t, err)
			synctest.Wait()
			require.Equal(t, []metav1.OwnerReference{
				{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriver", Name: driverName, UID: uid}}, owners())
			require.NoError(t, f.client.StorageV1().CSIDrivers().Delete(t.Context(), driverName, metav1.DeleteOptions{}))
			synctest.Wait()
		}
	})
}

func TestOwners(t *testing.T) {
	yes := true
	client := fake.NewClientset(
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "alone", Namespace: "ns", UID: "p"}},
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one-of-many", Namespace: "ns", UID: "q", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "many", UID: "s", Controller: &yes}}}},
	)
	owner, err := capacity.OwnerForPod(t.Context(), client, "ns", "alone")
	require.NoError(t, err)
	require.Equal(t, &metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "alone", UID: "p"}, owner)
	owner, err = capacity.OwnerForPod(t.Context(), client, "ns", "one-of-many")
	require.NoError(t, err)
	require.Equal(t, &metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "many", UID: "s"}, owner)
	_, err = capacity.OwnerForPod(t.Context(), client, "ns", "gone")
	require.ErrorContains(t, err, `"ns/gone"`)
}

// TestCapacityOfOneNode publishes that of one node, and leaves the objects of the others alone.
func TestCapacityOfOneNode(t *testing.T) {
	objects := append(append(newNode("a"), newNode("b")...), newClass("fast", driverName, nil))
	other := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Name: "of-b", Namespace: namespace, Labels: map[string]string{
		"csi.storage.k8s.io/drivername": driverName, "csi.storage.k8s.io/managed-by": "berth-b"}},
		StorageClassName: "fast", NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{topology: "b"}},
		Capacity: resource.NewQuantity(7, resource.BinarySI)}
	run(t, append(objects, other), capacity.Config{NodeName: "a", ManagedBy: "berth-a"}, func(f *fixture) {
		require.Equal(t, map[string]int64{"fast a": 1000, "fast b": 7}, f.published())
	})
}
