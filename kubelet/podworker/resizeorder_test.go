package podworker

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

func TestOrderOfResizes(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	// request is a request of a Burstable Pod for twice its CPU, by default.
	request := func(uid string, change ...func(*resizeRequest)) *resizeRequest {
		amounts := func(cpu, memory string) *corev1.Pod {
			return &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Status: corev1.PodStatus{QOSClass: corev1.PodQOSBurstable},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
					},
				}}}},
			}
		}
		r := &resizeRequest{allocated: amounts("1", "1Gi"), desired: amounts("2", "1Gi"), since: begin}
		for _, fn := range change {
			fn(r)
		}
		return r
	}
	requests := func(cpu, memory string) func(*resizeRequest) {
		return func(r *resizeRequest) {
			list := r.desired.Spec.Containers[0].Resources.Requests
			list[corev1.ResourceCPU], list[corev1.ResourceMemory] = resource.MustParse(cpu), resource.MustParse(memory)
		}
	}
	priority := func(value int32) func(*resizeRequest) {
		return func(r *resizeRequest) { r.desired.Spec.Priority = ptr.To(value) }
	}
	guaranteed := func(r *resizeRequest) { r.desired.Status.QOSClass = corev1.PodQOSGuaranteed }
	age := func(d time.Duration) func(*resizeRequest) { return func(r *resizeRequest) { r.since = begin.Add(-d) } }
	for name, c := range map[string][]*resizeRequest{
		"less before more": {
			request("b", requests("500m", "512Mi")), request("a", priority(9), guaranteed, age(time.Hour)),
		},
		"as much is not more":                {request("b", requests("1", "1Gi")), request("a", priority(9))},
		"less CPU and more memory is more":   {request("b", requests("500m", "1Gi")), request("a", requests("500m", "2Gi"))},
		"the priority decides among lesser":  {request("b", requests("1", "512Mi"), priority(1)), request("a", requests("500m", "1Gi"))},
		"priority before class":              {request("b", priority(2)), request("a", priority(1), guaranteed, age(time.Hour))},
		"no priority is 0":                   {request("b"), request("a", priority(-1), guaranteed, age(time.Hour))},
		"Guaranteed before age":              {request("b", guaranteed), request("a", age(time.Hour))},
		"the oldest first":                   {request("c", age(2*time.Hour)), request("b", age(time.Hour)), request("a")},
		"otherwise one order, whichever one": {request("a"), request("b")},
	} {
		t.Run(name, func(t *testing.T) {
			shuffled := slices.Clone(c)
			slices.Reverse(shuffled)
			for _, got := range [][]*resizeRequest{shuffled, slices.Clone(c)} {
				sortResizes(got)
				require.Equal(t, c, got)
			}
		})
	}
}
