package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/kubelet/node"
)

func TestRegistersReadyAtOnce(t *testing.T) {
	run(t, func(f *fixture) {
		f.runtime.images = []*runtimeapi.Image{
			{Id: "s", RepoTags: []string{"small:1"}, Size: 1}, {Id: "b", RepoTags: []string{"big:1"}, Size: 9}, {Id: "none"},
		}
	}, func(t *testing.T, f *fixture) {
		n := f.get(t)
		require.Equal(t, "n1", n.Labels[corev1.LabelHostname])
		require.Equal(t, "linux", n.Labels[corev1.LabelOSStable])
		require.Equal(t, "linux", n.Labels["beta.kubernetes.io/os"])
		require.Equal(t, "true", n.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"])
		require.Equal(t, []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: "n1"},
		}, n.Status.Addresses)
		require.EqualValues(t, 10250, n.Status.DaemonEndpoints.KubeletEndpoint.Port)
		require.Equal(t, "containerd://2.4.2", n.Status.NodeInfo.ContainerRuntimeVersion)
		require.Equal(t, "v1.36.3+berth.1", n.Status.NodeInfo.KubeletVersion)
		require.Equal(t, "boot-1", n.Status.NodeInfo.BootID)
		require.Equal(t, []corev1.ContainerImage{
			{Names: []string{"big:1"}, SizeBytes: 9}, {Names: []string{"small:1"}, SizeBytes: 1},
		}, n.Status.Images)
		require.Len(t, n.Status.RuntimeHandlers, 2)
		require.True(t, *n.Status.RuntimeHandlers[1].Features.RecursiveReadOnlyMounts)
		require.True(t, *n.Status.Features.SupplementalGroupsPolicy)
		for name, want := range map[corev1.ResourceName][2]string{
			"cpu": {"4", "4"}, "memory": {"8Gi", "7068Mi"}, "pods": {"110", "110"},
			"ephemeral-storage": {"100Gi", "90Gi"}, "hugepages-2Mi": {"1Gi", "1Gi"},
		} {
			capacity, allocatable := n.Status.Capacity[name], n.Status.Allocatable[name]
			require.Zero(t, capacity.Cmp(resource.MustParse(want[0])), "%s capacity %s", name, capacity.String())
			require.Zero(t, allocatable.Cmp(resource.MustParse(want[1])), "%s allocatable %s", name, allocatable.String())
		}
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
		require.Equal(t, corev1.ConditionFalse, f.condition(t, corev1.NodeDiskPressure).Status)
		require.Equal(t, 1, f.writes(), "one create does it all")
		require.Equal(t, []string{"Normal Starting Starting kubelet.", "Normal NodeReady Node n1 status is now: NodeReady"}, f.events())
	})
}

// Another client changes what programs run on the machine, by its labels; other labels are its own.
func TestMachineLabelsAreRestored(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		n := f.get(t)
		n.Labels[corev1.LabelOSStable], n.Labels["own"] = "other", "kept"
		delete(n.Labels, corev1.LabelArchStable)
		_, err := f.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		labels := f.get(t).Labels
		require.Equal(t, "linux", labels[corev1.LabelOSStable])
		require.Equal(t, goruntime.GOARCH, labels[corev1.LabelArchStable])
		require.Equal(t, "kept", labels["own"])
		require.Equal(t, 2, f.writes(), "nothing is written twice")
	})
}

// TestStartupOfANewNode measures the start of a Node whose first creation fails and whose network is not ready at first, and not that of one
// that exists.
func TestStartupOfANewNode(t *testing.T) {
	refused := false
	run(t, func(f *fixture) {
		f.runtime.network = false
		f.client.PrependReactor("create", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			handled := !refused
			refused = true
			return handled, nil, errors.New("not yet")
		})
	}, func(t *testing.T, f *fixture) {
		time.Sleep(time.Second)
		synctest.Wait()
		require.Len(t, f.startups, 1)
		registered := f.startups[0]
		require.Positive(t, registered.Registered.Sub(registered.Attempted))
		require.Zero(t, registered.Ready)
		f.runtime.set(func(r *fakeRuntime) { r.network = true })
		f.RuntimeChanged()
		synctest.Wait()
		want := registered
		want.Ready = time.Now()
		require.Equal(t, []node.Startup{registered, want}, f.startups)
		f.runtime.set(func(r *fakeRuntime) { r.network = false })
		f.RuntimeChanged()
		synctest.Wait()
		f.runtime.set(func(r *fakeRuntime) { r.network = true })
		f.RuntimeChanged()
		synctest.Wait()
		require.Len(t, f.startups, 2)
	})
	run(t, func(f *fixture) {
		require.NoError(t, f.client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	}, func(t *testing.T, f *fixture) {
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
		require.Empty(t, f.startups)
	})
}

func TestWritesOnlyChangesAndSlowReports(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		time.Sleep(4 * time.Minute)
		require.Equal(t, 1, f.writes())
		before := f.condition(t, corev1.NodeReady)
		time.Sleep(2 * time.Minute)
		require.Equal(t, 2, f.writes())
		after := f.condition(t, corev1.NodeReady)
		require.True(t, before.LastHeartbeatTime.Before(&after.LastHeartbeatTime))
		require.Equal(t, before.LastTransitionTime, after.LastTransitionTime)

		f.runtime.set(func(r *fakeRuntime) { r.images = []*runtimeapi.Image{{Id: "i", RepoTags: []string{"new:1"}}} })
		f.ImagesChanged()
		synctest.Wait()
		require.Equal(t, "new:1", f.get(t).Status.Images[0].Names[0])
	})
}

func TestNetworkNotReady(t *testing.T) {
	run(t, func(f *fixture) { f.runtime.network = false }, func(t *testing.T, f *fixture) {
		ready := f.condition(t, corev1.NodeReady)
		require.Equal(t, corev1.ConditionFalse, ready.Status)
		require.Equal(t, "container runtime network not ready: NetworkReady=false reason:NoCNI message:no config", ready.Message)
		// While not ready, the runtime is queried often: there is no event for its network becoming ready.
		time.Sleep(700 * time.Millisecond)
		f.runtime.set(func(r *fakeRuntime) { r.network = true })
		time.Sleep(time.Second)
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
		require.Contains(t, f.events(), "Normal NodeReady Node n1 status is now: NodeReady")
	})
}

func TestRuntimeAwayHasGrace(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		f.runtime.set(func(r *fakeRuntime) { r.away = errors.New("no socket") })
		f.RuntimeChanged()
		time.Sleep(20 * time.Second)
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
		time.Sleep(20 * time.Second)
		ready := f.condition(t, corev1.NodeReady)
		require.Equal(t, corev1.ConditionFalse, ready.Status)
		require.Equal(t, "container runtime is down", ready.Message)
		require.Contains(t, f.events(), "Normal NodeNotReady Node n1 status is now: NodeNotReady")
		require.Equal(t, "containerd://2.4.2", f.get(t).Status.NodeInfo.ContainerRuntimeVersion)
		f.runtime.set(func(r *fakeRuntime) { r.away = nil })
		f.RuntimeChanged()
		synctest.Wait()
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
	})
}

// Whatever else happens on the node, an unreachable runtime is queried with backoff.
func TestUnreachableRuntimeIsQueriedSlowly(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		f.runtime.set(func(r *fakeRuntime) { r.away, r.asked = errors.New("no socket"), 0 })
		f.RuntimeChanged()
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			f.SetNotReady("test", nil)
		}
		f.runtime.set(func(r *fakeRuntime) { require.Less(t, r.asked, 101, "10 s of events") })
	})
}

func TestRuntimeDownAtStart(t *testing.T) {
	run(t, func(f *fixture) { f.runtime.away = errors.New("no socket") }, func(t *testing.T, f *fixture) {
		ready := f.condition(t, corev1.NodeReady)
		require.Equal(t, corev1.ConditionFalse, ready.Status)
		require.Contains(t, ready.Message, "container runtime is down")
		f.runtime.set(func(r *fakeRuntime) { r.away = nil })
		f.RuntimeChanged()
		synctest.Wait()
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
	})
}

func TestReasonsOfOthers(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		f.SetNotReady("shutdown", errors.New("node is shutting down"))
		f.SetNotReady("pleg", errors.New("events are stale"))
		synctest.Wait()
		require.Equal(t, "[events are stale, node is shutting down]", f.condition(t, corev1.NodeReady).Message)
		f.SetNotReady("shutdown", nil)
		f.SetNotReady("pleg", nil)
		synctest.Wait()
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
	})
}

func TestPressure(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		f.pressure = []eviction.Condition{
			{Type: corev1.NodeDiskPressure, Detail: "nodefs.inodesFree<5%"}, {Type: corev1.NodeMemoryPressure, Detail: "memory.available<100Mi"},
		}
		f.PressureChanged()
		synctest.Wait()
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeMemoryPressure).Status)
		disk := f.condition(t, corev1.NodeDiskPressure)
		require.Equal(t, "KubeletHasDiskPressure", disk.Reason)
		require.Equal(t, "kubelet has disk pressure: nodefs.inodesFree<5%", disk.Message)
		require.Equal(t, corev1.ConditionFalse, f.condition(t, corev1.NodePIDPressure).Status)
		require.Contains(t, f.events(), "Normal NodeHasDiskPressure Node n1 status is now: NodeHasDiskPressure")
		f.pressure = nil
		f.PressureChanged()
		synctest.Wait()
		require.Equal(t, corev1.ConditionFalse, f.condition(t, corev1.NodeMemoryPressure).Status)
	})
}

func TestNodeBornUnderPressureSaysSo(t *testing.T) {
	run(t, func(f *fixture) {
		f.pressure = []eviction.Condition{{Type: corev1.NodeDiskPressure, Detail: "nodefs.available<10%"}}
	}, func(t *testing.T, f *fixture) {
		require.Contains(t, f.events(), "Normal NodeHasDiskPressure Node n1 status is now: NodeHasDiskPressure")
	})
}

func TestTakesOverExistingNode(t *testing.T) {
	run(t, func(f *fixture) {
		f.client = fake.NewClientset(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", Labels: map[string]string{"mine": "yes", corev1.LabelHostname: "old"}},
			Status: corev1.NodeStatus{
				Capacity:        corev1.ResourceList{"example.com/gpu": resource.MustParse("2"), "hugepages-1Gi": resource.MustParse("1Gi")},
				NodeInfo:        corev1.NodeSystemInfo{BootID: "boot-0"},
				Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.9.9.9"}},
				VolumesInUse:    []corev1.UniqueVolumeName{"v1"},
				VolumesAttached: []corev1.AttachedVolume{{Name: "v1"}},
				Conditions: []corev1.NodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}, {Type: "Other", Status: corev1.ConditionTrue},
				},
			},
		})
	}, func(t *testing.T, f *fixture) {
		n := f.get(t)
		require.Equal(t, "yes", n.Labels["mine"])
		require.Equal(t, "n1", n.Labels[corev1.LabelHostname])
		require.Equal(t, "10.0.0.1", n.Status.Addresses[0].Address)
		require.Len(t, n.Status.Addresses, 2)
		require.Contains(t, n.Status.Capacity, corev1.ResourceName("example.com/gpu"))
		require.NotContains(t, n.Status.Capacity, corev1.ResourceName("hugepages-1Gi"))
		require.Equal(t, []corev1.UniqueVolumeName{"v1"}, n.Status.VolumesInUse, "the volumes in use are not known yet")
		require.Len(t, n.Status.VolumesAttached, 1)
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
		require.Equal(t, corev1.ConditionTrue, f.condition(t, "Other").Status)
		require.Contains(t, f.events(), "Warning Rebooted Node n1 has been rebooted, boot id: boot-1")
	})
}

// TestLabelsOfAnExistingNodeAreTheUsers: the configured labels are those of a Node that is created, and what an administrator has made of them
// stays. Where the machine is, and what it is, the kubelet knows better.
func TestLabelsOfAnExistingNodeAreTheUsers(t *testing.T) {
	run(t, func(f *fixture) {
		f.labels = map[string]string{"tier": "front", "removed": "yes", corev1.LabelTopologyZone: "b"}
		f.client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u", Labels: map[string]string{
			"tier": "back", corev1.LabelTopologyZone: "a",
		}}})
	}, func(t *testing.T, f *fixture) {
		labels := f.get(t).Labels
		require.Equal(t, "back", labels["tier"])
		require.NotContains(t, labels, "removed")
		require.Equal(t, "b", labels[corev1.LabelTopologyZone])
		require.Equal(t, "n1", labels[corev1.LabelHostname])
	})
	run(t, func(f *fixture) { f.labels = map[string]string{"tier": "front"} }, func(t *testing.T, f *fixture) {
		require.Equal(t, "front", f.get(t).Labels["tier"])
	})
}

// TestImagesThatCannotBeListed: a pull ends while the runtime does not respond to anything else.
func TestImagesThatCannotBeListed(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		f.runtime.set(func(r *fakeRuntime) { r.away = errors.New("restarting") })
		f.ImagesChanged()
		synctest.Wait()
		f.runtime.set(func(r *fakeRuntime) {
			r.away, r.images = nil, []*runtimeapi.Image{{Id: "i", RepoTags: []string{"docker.io/library/new:1"}, Size: 1}}
		})
		time.Sleep(time.Minute)
		require.Len(t, f.get(t).Status.Images, 1)
	})
}

func TestVolumesInUseAreAcknowledged(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		require.NoError(t, f.SetVolumesInUse(t.Context(), []corev1.UniqueVolumeName{"b", "a"}))
		require.Equal(t, []corev1.UniqueVolumeName{"a", "b"}, f.get(t).Status.VolumesInUse)
		require.NoError(t, f.SetVolumesInUse(t.Context(), nil))
		require.Empty(t, f.get(t).Status.VolumesInUse)

		f.client.PrependReactor("patch", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("api away")
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorContains(t, f.SetVolumesInUse(ctx, []corev1.UniqueVolumeName{"c"}), `volumes in use of node "n1"`)
	})
}

// TestVolumesInUseAfterAWriteWithoutAnswer: the API server has stored that no volume is in use, but neither its answer nor the watch
// has arrived. The volume that was in use before counts as reported only after it was written again.
func TestVolumesInUseAfterAWriteWithoutAnswer(t *testing.T) {
	var away atomic.Bool
	run(t, func(f *fixture) {
		f.client.PrependWatchReactor("nodes", func(clienttesting.Action) (bool, watch.Interface, error) {
			return true, watch.NewFake(), nil
		})
		f.client.PrependReactor("*", "nodes", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if !away.Load() {
				return false, nil, nil
			}
			if action.GetVerb() == "patch" {
				_, _, err := clienttesting.ObjectReaction(f.client.Tracker())(action)
				require.NoError(t, err)
			}
			return true, nil, errors.New("api away")
		})
	}, func(t *testing.T, f *fixture) {
		used := []corev1.UniqueVolumeName{"v"}
		require.NoError(t, f.SetVolumesInUse(t.Context(), used))
		away.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, f.SetVolumesInUse(ctx, nil))
		away.Store(false)
		require.Empty(t, f.get(t).Status.VolumesInUse)
		require.NoError(t, f.SetVolumesInUse(t.Context(), used))
		require.Equal(t, used, f.get(t).Status.VolumesInUse)
	})
}

func TestAPIServerAway(t *testing.T) {
	var mu sync.Mutex
	away := true
	run(t, func(f *fixture) {
		f.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			mu.Lock()
			defer mu.Unlock()
			return away, nil, errors.New("api away")
		})
	}, func(t *testing.T, f *fixture) {
		time.Sleep(10 * time.Minute)
		require.Nil(t, f.Node())
		capacity, _, err := f.Resources()
		require.NoError(t, err)
		require.EqualValues(t, 4, capacity.Cpu().Value())
		mu.Lock()
		away = false
		mu.Unlock()
		time.Sleep(6 * time.Second)
		<-f.Registered()
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
	})
}

func TestDeletedNodeComesBack(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		synctest.Wait()
		require.NoError(t, f.client.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}))
		synctest.Wait()
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
	})
}

func TestChangedByOthersIsPutRight(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		n := f.get(t).DeepCopy()
		for i := range n.Status.Conditions {
			n.Status.Conditions[i].Status = corev1.ConditionUnknown // as the node lifecycle controller does
		}
		_, err := f.client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
	})
}

// TestAddressChangesAreReported changes the addresses twice; the second time the primary address is an earlier one.
func TestAddressChangesAreReported(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		addresses := func() (all []string) {
			for _, address := range f.get(t).Status.Addresses {
				all = append(all, string(address.Type)+" "+address.Address)
			}
			return all
		}
		before := addresses()
		for _, now := range [][]net.IP{{net.IPv4(10, 9, 9, 9)}, {net.IPv4(10, 8, 8, 8), net.ParseIP("fd00::1")}, {net.IPv4(10, 9, 9, 9)}} {
			f.SetIPs(now)
			synctest.Wait() // the clock stands still: it is written at once
			want := []string{}
			for _, ip := range now {
				want = append(want, "InternalIP "+ip.String())
			}
			require.Equal(t, append(want, before[len(before)-1]), addresses())
		}
		require.NotContains(t, strings.Join(f.events(), " "), "Contested", "no other client is the cause")
	})
}

func TestLargestImagesAreListed(t *testing.T) {
	fill := func(f *fixture) {
		f.runtime.images = nil
		for i := range 60 {
			image := &runtimeapi.Image{Id: fmt.Sprintf("sha256:%02d", i), Size: uint64(1 + i)}
			for tag := range 7 {
				image.RepoTags = append(image.RepoTags, fmt.Sprintf("reg.example/app%02d:%d", i, tag))
			}
			f.runtime.images = append(f.runtime.images, image)
		}
	}
	run(t, fill, func(t *testing.T, f *fixture) {
		listed := f.get(t).Status.Images
		require.Len(t, listed, 50)
		require.EqualValues(t, 60, listed[0].SizeBytes)
		require.EqualValues(t, 11, listed[49].SizeBytes)
		require.Len(t, listed[0].Names, 5)
	})
}

func TestCordonIsRecorded(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		require.NotContains(t, strings.Join(f.events(), " "), "Schedulable", "a node begins schedulable")
		for _, c := range []struct {
			cordon bool
			want   string
		}{{true, "NodeNotSchedulable"}, {false, "NodeSchedulable"}} {
			n := f.get(t).DeepCopy()
			n.Spec.Unschedulable = c.cordon
			_, err := f.client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{})
			require.NoError(t, err)
			synctest.Wait()
			require.Equal(t, []string{"Normal " + c.want + " Node n1 status is now: " + c.want}, f.events())
		}
	})
}

func TestForbiddenToCreate(t *testing.T) {
	run(t, func(f *fixture) {
		f.client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
		f.client.PrependReactor("create", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n1", errors.New("no"))
		})
	}, func(t *testing.T, f *fixture) {
		require.Equal(t, corev1.ConditionTrue, f.condition(t, corev1.NodeReady).Status)
	})
}

func TestLease(t *testing.T) {
	run(t, nil, func(t *testing.T, f *fixture) {
		get := func() time.Time {
			l, err := f.client.CoordinationV1().Leases("kube-node-lease").Get(t.Context(), "n1", metav1.GetOptions{})
			require.NoError(t, err)
			require.EqualValues(t, 40, *l.Spec.LeaseDurationSeconds)
			require.Equal(t, "n1", *l.Spec.HolderIdentity)
			require.Equal(t, "Node", l.OwnerReferences[0].Kind)
			return l.Spec.RenewTime.Time
		}
		first := get()
		time.Sleep(11 * time.Second)
		second := get()
		require.InDelta(t, 10, second.Sub(first).Seconds(), 0.5)
		require.NoError(t, f.client.CoordinationV1().Leases("kube-node-lease").Delete(t.Context(), "n1", metav1.DeleteOptions{}))
		time.Sleep(11 * time.Second)
		require.True(t, get().After(second))
	})
}

func TestNewRefusesBadConfig(t *testing.T) {
	good := node.Config{Name: "n1", IPs: []net.IP{net.IPv4(10, 0, 0, 1)}}
	deps := node.Deps{Client: fake.NewClientset(), Runtime: &fakeRuntime{}, Machine: newMachine()}
	_, err := node.New(deps, good)
	require.NoError(t, err)
	for want, change := range map[string]func(*node.Config, *node.Deps){
		"Config.Name is required": func(c *node.Config, _ *node.Deps) { c.Name = "" },
		"lower case":              func(c *node.Config, _ *node.Deps) { c.Name = "N1" },
		"Config.IPs":              func(c *node.Config, _ *node.Deps) { c.IPs = nil },
		"Config.MaxPods":          func(c *node.Config, _ *node.Deps) { c.MaxPods = ptr.To[int64](-1) },
		"Config.LeaseDuration":    func(c *node.Config, _ *node.Deps) { c.LeaseDuration = -1 },
		"Deps.Client":             func(_ *node.Config, d *node.Deps) { d.Client = nil },
	} {
		config, d := good, deps
		change(&config, &d)
		_, err := node.New(d, config)
		require.ErrorContains(t, err, want)
	}
}
