package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const dongle = "example.com/dongle"

// withDongles makes the Node list extended resources that neither this process nor a device plugin knows.
func withDongles(count string) func(*Deps, *Config) {
	return func(d *Deps, _ *Config) {
		d.Node = func() *corev1.Node {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				dongle: resource.MustParse(count), "cpu": resource.MustParse("64"), "hugepages-2Mi": resource.MustParse("1Gi"),
			}}}
		}
	}
}

// TestExtendedResourcesOfTheNodeAreCounted: an administrator has written them to the Node's status, and the Pods may be those of manifests.
func TestExtendedResourcesOfTheNodeAreCounted(t *testing.T) {
	a := newAdmitter(t, withDongles("3"))
	two := testPod(withRequest(dongle, "2"))
	require.Nil(t, a.Admit(two, nil))
	failure := a.Admit(two, []*corev1.Pod{two})
	require.NotNil(t, failure)
	require.Equal(t, "OutOf"+dongle, failure.Reason)
	require.Contains(t, failure.Message, "requested: 2, used: 2, capacity: 3")
	require.Nil(t, a.Admit(testPod(withRequest("example.com/other", "1")), nil), "what the Node does not list is not its own")
	require.Equal(t, "OutOfcpu", a.Admit(testPod(withCPU("3")), nil).Reason, "what is measured is not read from the Node")
	require.Equal(t, "OutOfhugepages-2Mi", a.Admit(testPod(withRequest("hugepages-2Mi", "2Mi")), nil).Reason)
}

// TestTheReasonIsTheSameEachTime: of several resources that are short the one that the scheduler would name first.
func TestTheReasonIsTheSameEachTime(t *testing.T) {
	a := newAdmitter(t, func(d *Deps, c *Config) {
		withDongles("1")(d, c)
		d.Allocatable = func() corev1.ResourceList {
			return corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"), "ephemeral-storage": resource.MustParse("1Gi")}
		}
	})
	pod := testPod(func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
			"cpu": resource.MustParse("3"), "memory": resource.MustParse("2Gi"), "ephemeral-storage": resource.MustParse("2Gi"),
			dongle: resource.MustParse("2"), "hugepages-2Mi": resource.MustParse("2Mi"), "hugepages-1Gi": resource.MustParse("1Gi"),
		}
	})
	for _, name := range []corev1.ResourceName{"cpu", "memory", "ephemeral-storage", dongle, "hugepages-1Gi", "hugepages-2Mi"} {
		for range 10 {
			require.Equal(t, "OutOf"+string(name), a.Admit(pod, nil).Reason)
		}
		delete(pod.Spec.Containers[0].Resources.Requests, name)
	}
	require.Nil(t, a.Admit(pod, nil))
}

// TestACriticalPodPreemptsForWhatTheNodeCounts: neither its claim nor one of another Pod is a device that the end of that Pod makes free.
func TestACriticalPodPreemptsForWhatTheNodeCounts(t *testing.T) {
	a := newAdmitter(t, withDongles("0"))
	claimed := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[dongle] = resource.MustParse("1")
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
			ResourceClaimName: "made", RequestMappings: []corev1.ContainerExtendedResourceRequest{{ContainerName: "c", ResourceName: dongle, RequestName: "one"}},
		}
	}
	critical := testPod(withCPU("2"), claimed, func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](2_000_000_000) })
	other := testPod(withCPU("1"))
	require.Equal(t, []*corev1.Pod{other}, a.Preempt(critical, []*corev1.Pod{other}).Victims)
	critical.Status.ExtendedResourceClaimStatus = nil
	holder := testPod(withCPU("1"), claimed)
	require.Empty(t, a.Preempt(critical, []*corev1.Pod{holder}).Victims)
}
