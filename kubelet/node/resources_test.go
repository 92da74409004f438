package node_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/node"
)

// A kubelet with --max-pods=0 takes no Pods.
func TestANodeMayTakeNoPods(t *testing.T) {
	run(t, func(f *fixture) {
		f.configure = func(_ *node.Deps, config *node.Config) { config.MaxPods = ptr.To[int64](0) }
	}, func(t *testing.T, f *fixture) {
		status := f.get(t).Status
		require.Zero(t, status.Capacity.Pods().Value())
		require.Zero(t, status.Allocatable.Pods().Value())
	})
}

// TestExtendedResourcesOfAnAdministrator adds a resource to the capacity alone, as Kubernetes documents it, changes it and removes it.
func TestExtendedResourcesOfAnAdministrator(t *testing.T) {
	const name corev1.ResourceName = "example.com/dongle"
	run(t, nil, func(t *testing.T, f *fixture) {
		for _, amount := range []string{"4", "2"} {
			n := f.get(t)
			n.Status.Capacity[name] = resource.MustParse(amount)
			_, err := f.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
			require.NoError(t, err)
			time.Sleep(time.Minute) // another client that changes the status again and again has to wait
			status := f.get(t).Status
			require.Equal(t, resource.MustParse(amount), status.Capacity[name])
			require.Equal(t, resource.MustParse(amount), status.Allocatable[name])
		}
		n := f.get(t)
		delete(n.Status.Capacity, name)
		_, err := f.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		require.NoError(t, err)
		time.Sleep(time.Minute)
		status := f.get(t).Status
		require.NotContains(t, status.Capacity, name)
		require.NotContains(t, status.Allocatable, name)
	})
}

// TestExtendedResourcesOfAnotherMachine takes over the Node of a machine that was replaced by one without its devices: no Pod may be scheduled
// for them until a device plugin, or an administrator, adds them.
func TestExtendedResourcesOfAnotherMachine(t *testing.T) {
	const gone, found corev1.ResourceName = "example.com/gone", "example.com/found"
	for _, first := range []bool{true, false} {
		run(t, func(f *fixture) {
			list := corev1.ResourceList{gone: resource.MustParse("4"), found: resource.MustParse("4")}
			f.client = fake.NewClientset(&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u"}, Status: corev1.NodeStatus{Capacity: list, Allocatable: list},
			})
			f.configure = func(deps *node.Deps, _ *node.Config) {
				deps.First = func() bool { return first }
				deps.Devices = func() (capacity, allocatable corev1.ResourceList) {
					devices := corev1.ResourceList{found: resource.MustParse("2")}
					return devices, devices
				}
			}
		}, func(t *testing.T, f *fixture) {
			want := resource.MustParse("4")
			if first {
				want = resource.MustParse("0")
			}
			n := f.get(t)
			for _, list := range []corev1.ResourceList{n.Status.Capacity, n.Status.Allocatable} {
				require.Zero(t, want.Cmp(list[gone]))
				require.Equal(t, resource.MustParse("2"), list[found])
			}
			n.Status.Capacity[gone] = resource.MustParse("1")
			_, err := f.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
			require.NoError(t, err)
			synctest.Wait()
			require.Equal(t, resource.MustParse("1"), f.get(t).Status.Allocatable[gone], "an administrator adds it again")
		})
	}
}

func TestMoreIsReservedThanTheNodeHas(t *testing.T) {
	thresholds, err := eviction.ParseThresholds(eviction.Config{Hard: map[string]string{"memory.available": "1Gi", "nodefs.available": "10%"}})
	require.NoError(t, err)
	config := node.Config{
		Thresholds:     thresholds,
		KubeReserved:   corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("2Gi"), "pid": resource.MustParse("1000")},
		SystemReserved: corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")},
	}
	capacity := corev1.ResourceList{
		"cpu": resource.MustParse("2"), "memory": resource.MustParse("4Gi"), "ephemeral-storage": resource.MustParse("1Gi"), "pods": resource.MustParse("9"),
	}
	require.NoError(t, config.CheckReserved(capacity), "all of it may be reserved")
	capacity["cpu"], capacity["memory"] = resource.MustParse("1500m"), resource.MustParse("3Gi")
	require.EqualError(t, config.CheckReserved(capacity),
		"kubeReserved, systemReserved and evictionHard together reserve 2 of cpu, and the node has 1500m: reserve less\n"+
			"kubeReserved, systemReserved and evictionHard together reserve 4Gi of memory, and the node has 3Gi: reserve less")
}

// TestTheLimitOfImagesIsOfNamedOnes: large images without a name, as builds leave them, take no place of those that the scheduler looks for.
func TestTheLimitOfImagesIsOfNamedOnes(t *testing.T) {
	run(t, func(f *fixture) {
		f.runtime.images = []*runtimeapi.Image{
			{Id: "none", Size: 9}, {Id: "a", RepoTags: []string{"a:1"}, Size: 5}, {Id: "b", RepoTags: []string{"b:1"}, Size: 5},
			{Id: "c", RepoTags: []string{"c:1"}, Size: 1},
		}
		f.configure = func(_ *node.Deps, config *node.Config) { config.MaxImages = ptr.To(2) }
	}, func(t *testing.T, f *fixture) {
		require.Equal(t, []corev1.ContainerImage{
			{Names: []string{"b:1"}, SizeBytes: 5}, {Names: []string{"a:1"}, SizeBytes: 5},
		}, f.get(t).Status.Images)
	})
}
