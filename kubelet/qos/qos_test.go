package qos

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// list makes amounts of CPU and memory; an empty string leaves one out.
func list(cpu, memory string) corev1.ResourceList {
	l := corev1.ResourceList{}
	if cpu != "" {
		l[corev1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		l[corev1.ResourceMemory] = resource.MustParse(memory)
	}
	return l
}

func needs(requests, limits corev1.ResourceList) corev1.Container {
	return corev1.Container{Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
}

func podOf(containers ...corev1.Container) *corev1.Pod {
	return &corev1.Pod{Spec: corev1.PodSpec{Containers: containers}}
}

func TestClass(t *testing.T) {
	full := list("1", "1Gi")
	guaranteed := podOf(needs(full, full))
	guaranteed.Spec.InitContainers = []corev1.Container{needs(nil, nil)}
	whole := podOf(needs(nil, nil))
	whole.Spec.Resources = &corev1.ResourceRequirements{Requests: full, Limits: full}
	kept := podOf(needs(nil, nil))
	kept.Status.QOSClass = corev1.PodQOSGuaranteed

	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want corev1.PodQOSClass
	}{
		"nothing":                    {podOf(needs(nil, nil)), corev1.PodQOSBestEffort},
		"zero":                       {podOf(needs(list("0", "0"), nil)), corev1.PodQOSBestEffort},
		"storage only":               {podOf(needs(corev1.ResourceList{"ephemeral-storage": resource.MustParse("1Gi")}, nil)), corev1.PodQOSBestEffort},
		"equal":                      {podOf(needs(full, full)), corev1.PodQOSGuaranteed},
		"equal in other words":       {podOf(needs(list("1000m", "1024Mi"), full)), corev1.PodQOSGuaranteed},
		"one of two":                 {podOf(needs(full, full), needs(nil, nil)), corev1.PodQOSBurstable},
		"limits above requests":      {podOf(needs(list("500m", "1Gi"), full)), corev1.PodQOSBurstable},
		"limits without requests":    {podOf(needs(nil, full)), corev1.PodQOSBurstable},
		"CPU only":                   {podOf(needs(list("1", ""), list("1", ""))), corev1.PodQOSBurstable},
		"sums that happen to match":  {podOf(needs(list("1", "1Gi"), list("2", "1Gi")), needs(list("2", "1Gi"), list("1", "1Gi"))), corev1.PodQOSGuaranteed},
		"an init container counts":   {guaranteed, corev1.PodQOSBurstable},
		"the Pod as a whole":         {whole, corev1.PodQOSGuaranteed},
		"what the status says stays": {kept, corev1.PodQOSGuaranteed},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, Class(c.pod)) })
	}
}

func TestOOMScoreAdj(t *testing.T) {
	const capacity = 8 << 30
	full := list("1", "1Gi")
	critical := podOf(needs(nil, nil))
	critical.Spec.PriorityClassName = "system-node-critical"
	sidecar := podOf(needs(list("", "4Gi"), nil), needs(list("", "2Gi"), nil))
	side := needs(list("", "1Gi"), nil)
	side.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
	side.Name = "s"
	sidecar.Spec.InitContainers = []corev1.Container{side}
	whole := podOf(needs(list("", "1Gi"), nil), needs(nil, nil))
	whole.Spec.Resources = &corev1.ResourceRequirements{Requests: list("", "3Gi")}

	for name, c := range map[string]struct {
		pod  *corev1.Pod
		c    *corev1.Container
		want int64
	}{
		"BestEffort":                  {podOf(needs(nil, nil)), nil, 1000},
		"Guaranteed":                  {podOf(needs(full, full)), nil, -997},
		"node critical":               {critical, nil, -997},
		"a quarter":                   {podOf(needs(list("", "2Gi"), nil)), nil, 750},
		"almost nothing":              {podOf(needs(list("1m", ""), nil)), nil, 999},
		"more than there is":          {podOf(needs(list("", "16Gi"), nil)), nil, 3},
		"sidecar not before a main":   {sidecar, &sidecar.Spec.InitContainers[0], 750},
		"the Pod's request is shared": {whole, &whole.Spec.Containers[1], 875},
	} {
		t.Run(name, func(t *testing.T) {
			container := c.c
			if container == nil {
				container = &c.pod.Spec.Containers[0]
			}
			require.Equal(t, c.want, OOMScoreAdj(c.pod, container, capacity))
		})
	}
	require.Equal(t, int64(999), OOMScoreAdj(sidecar, &sidecar.Spec.Containers[0], 0), "unknown capacity")
}
