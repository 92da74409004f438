package admission

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func named(name string, class corev1.PodQOSClass, cpu, memory string, priority int32) *corev1.Pod {
	p := testPod()
	p.Name, p.Status.QOSClass, p.Spec.Priority = name, class, &priority
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}
	return p
}

func TestPreemption(t *testing.T) {
	const critical = int32(2_000_000_000)
	a := newAdmitter(t, func(d *Deps, c *Config) {
		d.Allocatable = func() corev1.ResourceList {
			return corev1.ResourceList{"cpu": resource.MustParse("10"), "memory": resource.MustParse("10Gi")}
		}
		c.MaxPods = 6
	})
	burstable, guaranteed, bestEffort := corev1.PodQOSBurstable, corev1.PodQOSGuaranteed, corev1.PodQOSBestEffort
	for i, c := range []struct {
		pod    *corev1.Pod
		others []*corev1.Pod
		want   []string
		signal string
	}{
		{ // enough is free
			pod: named("p", burstable, "4", "1Gi", critical), others: []*corev1.Pod{named("a", burstable, "6", "1Gi", 0)},
		},
		{ // not critical
			pod: named("p", burstable, "8", "1Gi", 100), others: []*corev1.Pod{named("a", burstable, "6", "1Gi", 0)},
		},
		{ // the Pod that suffices and has the smallest request
			pod: named("p", burstable, "4", "1Gi", critical), want: []string{"b"}, signal: "cpu",
			others: []*corev1.Pod{
				named("a", burstable, "5", "1Gi", 0), named("b", burstable, "2", "1Gi", 0), named("c", burstable, "1", "1Gi", 0),
			},
		},
		{ // one Pod rather than two smaller ones
			pod: named("p", burstable, "6", "1Gi", critical), want: []string{"a"}, signal: "cpu",
			others: []*corev1.Pod{
				named("a", burstable, "6", "1Gi", 0), named("b", burstable, "2", "1Gi", 0), named("c", burstable, "2", "1Gi", 0),
			},
		},
		{ // Burstable ones rather than one that is Guaranteed
			pod: named("p", burstable, "4", "1Gi", critical), want: []string{"b", "c"}, signal: "cpu",
			others: []*corev1.Pod{
				named("a", guaranteed, "6", "1Gi", 0), named("b", burstable, "2", "1Gi", 0), named("c", burstable, "2", "1Gi", 0),
			},
		},
		{ // a Guaranteed one where the others do not suffice, and then only as many others as are needed
			pod: named("p", burstable, "8", "1Gi", critical), want: []string{"a"}, signal: "cpu",
			others: []*corev1.Pod{named("a", guaranteed, "8", "1Gi", 0), named("b", burstable, "2", "1Gi", 0)},
		},
		{ // two resources
			pod: named("p", burstable, "8", "8Gi", critical), want: []string{"a", "b"}, signal: "cpu",
			others: []*corev1.Pod{named("a", burstable, "3", "0", 0), named("b", burstable, "0", "3Gi", 0)},
		},
		{ // the number of Pods: a BestEffort one
			pod: named("p", burstable, "1", "1Gi", critical), want: []string{"f"}, signal: "pods",
			others: []*corev1.Pod{
				named("a", burstable, "1", "1Gi", 0), named("b", burstable, "1", "1Gi", 0), named("c", burstable, "1", "1Gi", 0),
				named("d", burstable, "1", "1Gi", 0), named("e", burstable, "1", "1Gi", 0), named("f", bestEffort, "0", "0", 0),
			},
		},
		{ // critical Pods of the same priority stay, and nothing is preempted where that does not suffice
			pod:    named("p", burstable, "8", "1Gi", critical),
			others: []*corev1.Pod{named("a", burstable, "6", "1Gi", critical), named("b", burstable, "2", "1Gi", 0)},
		},
		{ // a critical Pod of a lower priority does not
			pod: named("p", burstable, "8", "1Gi", critical+1000), want: []string{"a"}, signal: "cpu",
			others: []*corev1.Pod{named("a", burstable, "6", "1Gi", critical)},
		},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			got := a.Preempt(c.pod, c.others)
			var names []string
			for _, victim := range got.Victims {
				names = append(names, victim.Name)
			}
			require.ElementsMatch(t, c.want, names)
			require.Equal(t, c.signal, got.Signal)
		})
	}
	static := named("static", burstable, "8", "1Gi", 0)
	withSource("file")(static)
	static.Spec.Priority = ptr.To[int32](0)
	require.Len(t, a.Preempt(static, []*corev1.Pod{named("a", burstable, "6", "1Gi", 0)}).Victims, 1)
	require.Empty(t, a.Preempt(named("p", burstable, "8", "1Gi", critical), []*corev1.Pod{static}).Victims)
}
