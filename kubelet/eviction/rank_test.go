package eviction

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
	"k8s.io/utils/ptr"
)

// pod returns a Pod of one container with requests of memory and ephemeral storage.
func pod(name string, priority int32, memory, disk string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)}}
	p.Spec.Priority = ptr.To(priority)
	p.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}}
	for name, text := range map[corev1.ResourceName]string{corev1.ResourceMemory: memory, corev1.ResourceEphemeralStorage: disk} {
		if text != "" {
			p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(text)
		}
	}
	p.Spec.Volumes = []corev1.Volume{
		{Name: "cache", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
	}
	return p
}

func fs(bytes, inodes uint64) *statsapi.FsStats {
	return &statsapi.FsStats{UsedBytes: &bytes, InodesUsed: &inodes}
}

// stats returns usage; layer, logs and volume are of the disk, with a hundredth of them in inodes.
func stats(memory, processes, layer, logs, volume uint64) *statsapi.PodStats {
	used := &statsapi.MemoryStats{WorkingSetBytes: &memory}
	return &statsapi.PodStats{
		Memory: used, ProcessStats: &statsapi.ProcessStats{ProcessCount: &processes},
		Containers: []statsapi.ContainerStats{{Name: "c", Memory: used, Rootfs: fs(layer, layer/100), Logs: fs(logs, logs/100)}},
		VolumeStats: []statsapi.VolumeStats{
			{Name: "cache", FsStats: *fs(volume, volume/100)}, {Name: "memory", FsStats: *fs(1<<40, 1<<40)},
		},
	}
}

// withOverhead adds the overhead of a RuntimeClass.
func withOverhead(p *corev1.Pod) *corev1.Pod {
	p.Spec.Overhead = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("10Mi")}
	return p
}

func TestRank(t *testing.T) {
	one, images := Layout{}, Layout{Images: true}
	for name, test := range map[string]struct {
		signal Signal
		layout Layout
		pods   []*corev1.Pod
		usage  Usage
		want   []string
	}{
		"above the request first, whatever the priority": {
			MemoryAvailable, one, []*corev1.Pod{pod("below", 0, "100Mi", ""), pod("above", 1000, "10Mi", "")},
			Usage{"below": stats(99<<20, 1, 0, 0, 0), "above": stats(11<<20, 1, 0, 0, 0)}, []string{"above", "below"},
		},
		"then the lower priority, whatever the usage": {
			MemoryAvailable, one, []*corev1.Pod{pod("high", 10, "", ""), pod("low", 1, "", "")},
			Usage{"high": stats(500<<20, 1, 0, 0, 0), "low": stats(1<<20, 1, 0, 0, 0)}, []string{"low", "high"},
		},
		"then the usage above the request": {
			AllocatableMemoryAvailable, one, []*corev1.Pod{pod("much", 0, "90Mi", ""), pod("more", 0, "", "")},
			Usage{"much": stats(100<<20, 1, 0, 0, 0), "more": stats(20<<20, 1, 0, 0, 0)}, []string{"more", "much"},
		},
		"overhead is no request by itself": {
			MemoryAvailable, one, []*corev1.Pod{withOverhead(pod("below", 0, "10Mi", "")), withOverhead(pod("above", 9, "", ""))},
			Usage{"below": stats(15<<20, 1, 0, 0, 0), "above": stats(5<<20, 1, 0, 0, 0)}, []string{"above", "below"},
		},
		"a Pod that cannot be measured first": {
			MemoryAvailable, one, []*corev1.Pod{pod("known", 0, "", ""), pod("unknown", 10, "", "")},
			Usage{"known": stats(500<<20, 1, 0, 0, 0)}, []string{"unknown", "known"},
		},
		"processes: the priority, then their number": {
			PIDAvailable, one, []*corev1.Pod{pod("few", 0, "", ""), pod("high", 5, "", ""), pod("many", 0, "", "")},
			Usage{"few": stats(0, 2, 0, 0, 0), "high": stats(0, 9000, 0, 0, 0), "many": stats(0, 100, 0, 0, 0)}, []string{"many", "few", "high"},
		},
		"disk: layers, logs and volumes on disk": {
			NodeFsAvailable, one, []*corev1.Pod{pod("layer", 0, "", ""), pod("all", 0, "", "")},
			Usage{"layer": stats(0, 1, 5000, 0, 0), "all": stats(0, 1, 2000, 2000, 2000)}, []string{"all", "layer"},
		},
		"disk: the request": {
			NodeFsAvailable, one, []*corev1.Pod{pod("requests", 0, "", "1Mi"), pod("none", 0, "", "")},
			Usage{"requests": stats(0, 1, 1<<20, 0, 0), "none": stats(0, 1, 1000, 0, 0)}, []string{"none", "requests"},
		},
		"images apart: the node's disk has no layers": {
			NodeFsAvailable, images, []*corev1.Pod{pod("layer", 0, "", ""), pod("log", 0, "", "")},
			Usage{"layer": stats(0, 1, 1<<30, 0, 0), "log": stats(0, 1, 0, 1000, 0)}, []string{"log", "layer"},
		},
		"images apart: the images' disk has layers alone": {
			ImageFsAvailable, images, []*corev1.Pod{pod("log", 0, "", ""), pod("layer", 0, "", "")},
			Usage{"log": stats(0, 1, 0, 1<<30, 1<<30), "layer": stats(0, 1, 1000, 0, 0)}, []string{"layer", "log"},
		},
		"inodes": {
			NodeFsInodesFree, one, []*corev1.Pod{pod("few", 0, "", ""), pod("many", 0, "", "1Gi")},
			Usage{"few": stats(0, 1, 1000, 0, 0), "many": stats(0, 1, 0, 0, 5000)}, []string{"many", "few"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, p := range rank(test.signal, test.layout, test.pods, test.usage) {
				names = append(names, p.Name)
			}
			require.Equal(t, test.want, names)
		})
	}
}

func TestMessages(t *testing.T) {
	memory := parse(t, Config{Hard: map[string]string{"memory.available": "100Mi"}})[0]
	text, annotations := message(memory, Observation{Available: 95 << 20, Capacity: gi}, pod("p", 0, "10Mi", ""), stats(20<<20, 1, 0, 0, 0))
	require.Equal(t, "The node was low on resource: memory. Threshold quantity: 100Mi, available: 95Mi. "+
		"Container c was using 20Mi, request is 10Mi, has larger consumption of memory. ", text)
	require.Equal(t, map[string]string{
		"starved_resource": "memory", "offending_containers": "c", "offending_containers_usage": "20Mi",
	}, annotations)

	level := pod("p", 0, "", "")
	level.Spec.Resources = &corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}}
	text, annotations = message(memory, Observation{}, level, stats(20<<20, 1, 0, 0, 0))
	require.Contains(t, text, "Pod p was using 20Mi, request is 1Mi, has larger consumption of memory. Container c was using 20Mi, request is 0, ")
	require.Equal(t, "p", annotations["offending_pod"])
	require.Equal(t, "20Mi", annotations["offending_pod_usage"])

	disk := parse(t, Config{Hard: map[string]string{"nodefs.available": "10%"}})[0]
	text, annotations = message(disk, Observation{Available: 5 << 20, Capacity: 100 << 20}, pod("p", 0, "", "1Gi"), stats(0, 1, 1<<20, 0, 0))
	require.Equal(t, "The node was low on resource: ephemeral-storage. Threshold quantity: 10Mi, available: 5Mi. ", text)
	require.Empty(t, annotations["offending_containers"])

	inodes := parse(t, Config{Hard: map[string]string{"nodefs.inodesFree": "5%"}})[0]
	text, _ = message(inodes, Observation{Available: 12, Capacity: 1000}, pod("p", 0, "", ""), nil)
	require.Equal(t, "The node was low on resource: inodes. Threshold quantity: 50, available: 12. ", text)

	pids := parse(t, Config{Hard: map[string]string{"pid.available": "1000"}})[0]
	text, _ = message(pids, Observation{Available: 12, Capacity: 32768}, pod("p", 0, "", ""), stats(0, 9, 0, 0, 0))
	require.Equal(t, "The node was low on resource: pids. Threshold quantity: 1k, available: 12. ", text)
}
