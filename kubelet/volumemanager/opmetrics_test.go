package volumemanager_test

import (
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	csifake "github.com/berth-dev/berth/volume/csi/fake"
)

// operationCounts counts the operations by plugin, name and status, as a scrape has them.
func (f *fixture) operationCounts() map[string]uint64 {
	f.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(f.t, registry.Register(f.durations))
	families, err := registry.Gather()
	require.NoError(f.t, err)
	counts := make(map[string]uint64)
	for _, family := range families {
		require.Equal(f.t, "storage_operation_duration_seconds", family.GetName())
		for _, metric := range family.GetMetric() {
			labels := make(map[string]string)
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			require.Equal(f.t, "false", labels["migrated"])
			require.Len(f.t, labels, 4)
			key := labels["volume_plugin"] + " " + labels["operation_name"] + " " + labels["status"]
			counts[key] = metric.GetHistogram().GetSampleCount()
		}
	}
	return counts
}

// TestOperationsAreMeasured lets volumes of several kinds live, and each operation on that of a driver fail once.
func TestOperationsAreMeasured(t *testing.T) {
	const disk = "kubernetes.io/csi:" + driverName
	f := newDriverFixture(t)
	f.createUnattachedDriver(func(object *storagev1.CSIDriver) {
		object.Spec.VolumeLifecycleModes = []storagev1.VolumeLifecycleMode{
			storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral,
		}
	})
	pv := f.createDriverClaim("v", func(pv *corev1.PersistentVolume) { pv.Spec.CSI.FSType = "ext4" }).DeepCopy()
	f.createDriverClaim("raw", func(pv *corev1.PersistentVolume) { pv.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) })
	f.create(configMap("conf", "1"))
	p := pod("a", claimVolume("data", "v"), emptyDir("scratch"), configMapVolume("conf", "conf"),
		vol("in", corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: driverName}}))
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To[int64](1234)}
	f.driver.FailNext("NodeStageVolume", csifake.Fault{Code: codes.Internal})
	done := f.startMount(p)
	require.Contains(t, f.nextEvent(), "FailedMount")
	f.stepUntil(100*time.Millisecond, "tried again", func() bool { return len(done) == 1 })
	require.NoError(t, f.result(done))
	require.NoError(t, f.Mount(t.Context(), p), "which has nothing to do")
	require.NoError(t, f.Mount(t.Context(), blockPod("b", claimVolume("raw", "raw"))))
	lived := map[string]uint64{
		disk + " volume_mount success": 2, disk + " volume_mount fail-unknown": 1, disk + " map_volume success": 1,
		disk + " volume_apply_access_control success": 1, "kubernetes.io/empty-dir volume_mount success": 1,
	}
	const refreshed = "kubernetes.io/configmap volume_mount success"
	counts := f.operationCounts()
	require.NotZero(t, counts[refreshed], "once, or again if the watch reported the object after it was read")
	delete(counts, refreshed)
	require.Equal(t, lived, counts)

	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
	require.NoError(t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), pv, ""))
	f.stepUntil(time.Second, "grown", func() bool { return f.operationCounts()[disk+" volume_fs_resize success"] == 1 })
	seen := f.operationCounts()[refreshed]
	update := configMap("conf", "2")
	require.NoError(t, f.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), update, "ns"))
	f.eventually("the new content", func() bool { return f.readFile("a", "conf", "k") == "2" })
	f.eventually("the refresh is recorded", func() bool { return f.operationCounts()[refreshed] > seen })
	for _, again := range []string{"volume_mount success", "volume_apply_access_control success"} {
		require.Equal(t, lived[disk+" "+again], f.operationCounts()[disk+" "+again], "a volume without refresh is not mounted again")
	}

	f.restart() // what follows goes by what is on disk
	before := f.operationCounts()
	var failed sync.Map // calls that have failed once
	f.driver.Plan(func(call, _ string) csifake.Fault {
		if _, once := failed.LoadOrStore(call, true); once {
			return csifake.Fault{}
		}
		return csifake.Fault{Code: codes.Internal}
	})
	ended := make(chan error, 1)
	go func() { ended <- f.Unmount(t.Context(), "b") }()
	f.stepUntil(100*time.Millisecond, "unmapped", func() bool { return f.operationCounts()[disk+" unmap_device success"] == 1 })
	require.NoError(t, f.result(ended))
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.requireUnstaged()
	f.eventually("the last operation is counted", func() bool { return f.operationCountsSince(before)[disk+" unmount_device success"] == 1 })
	require.Equal(t, map[string]uint64{
		disk + " unmap_volume success": 1, disk + " unmap_volume fail-unknown": 1,
		disk + " unmap_device success": 1, disk + " unmap_device fail-unknown": 1,
		disk + " volume_unmount success": 1, disk + " unmount_device success": 1,
		"kubernetes.io/csi volume_unmount success":       1, // the inline volume, whose driver is unknown now
		"kubernetes.io/empty-dir volume_unmount success": 1, "kubernetes.io/configmap volume_unmount success": 1,
	}, f.operationCountsSince(before))
}

// TestCancelledOperationIsNoFailure has a Pod go while the driver still stages its volume.
func TestCancelledOperationIsNoFailure(t *testing.T) {
	f := newDriverFixture(t)
	f.createUnattachedDriver()
	f.createDriverClaim("v")
	staging := make(chan struct{})
	f.driver.Plan(func(call, _ string) csifake.Fault {
		if call == "NodeStageVolume" {
			close(staging)
			return csifake.Fault{Hang: true}
		}
		return csifake.Fault{}
	})
	done := f.startMount(pod("a", claimVolume("data", "v")))
	<-staging
	require.NoError(t, f.Unmount(t.Context(), "a"))
	require.Error(t, f.result(done))
	f.requireUnstaged()
	for key := range f.operationCounts() {
		require.NotContains(t, key, "fail")
		require.NotContains(t, key, "volume_mount")
	}
}

// operationCountsSince is what was counted since then.
func (f *fixture) operationCountsSince(before map[string]uint64) map[string]uint64 {
	f.t.Helper()
	after := f.operationCounts()
	for key, count := range before {
		if after[key] -= count; after[key] == 0 {
			delete(after, key)
		}
	}
	return after
}
