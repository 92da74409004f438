package volumemanager_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	csifake "github.com/berth-dev/berth/volume/csi/fake"
	"github.com/berth-dev/berth/volume/selinux"
)

// policy is a machine that uses SELinux. The kernel of the tests need not.
type policy struct{}

var _ selinux.Labels = policy{}

func (policy) Enabled() bool { return true }

func (policy) FileLabel(options *corev1.SELinuxOptions) (string, error) {
	if options.Type == "unknown_t" {
		return "", errors.New("no such type")
	}
	return "system_u:object_r:container_file_t:" + options.Level, nil
}

// newSELinuxFixture returns a fixture on a machine with SELinux and a driver that mounts with labels.
func newSELinuxFixture(t *testing.T, allModes bool) *fixture {
	f := newDriverFixture(t)
	f.seLinux, f.seLinuxMount = policy{}, allModes
	f.createUnattachedDriver(func(d *storagev1.CSIDriver) { d.Spec.SELinuxMount = ptr.To(true) })
	return f
}

// createModeClaim creates a claim with one access mode.
func (f *fixture) createModeClaim(name string, mode corev1.PersistentVolumeAccessMode) {
	f.createDriverClaim(name, func(pv *corev1.PersistentVolume) {
		pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
		pv.Spec.MountOptions = []string{"noatime"}
	})
}

// labelled returns a Pod with one container for each level, all of which mount the claim.
func labelled(uid types.UID, claim string, levels ...string) *corev1.Pod {
	p := pod(uid, claimVolume("v", claim))
	template := p.Spec.Containers[0]
	p.Spec.Containers = nil
	for _, level := range levels {
		c := *template.DeepCopy()
		c.Name = "c" + level
		c.SecurityContext = &corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{Level: level}}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

// gauges returns the metrics of labels that are not zero, as name{values}.
func (f *fixture) gauges() []string {
	f.t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(f.Collectors()...)
	families, err := registry.Gather()
	require.NoError(f.t, err)
	var out []string
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "volume_manager_selinux_") {
			continue
		}
		for _, metric := range family.Metric {
			var values []string
			for _, label := range metric.Label {
				values = append(values, label.GetValue())
			}
			out = append(out, strings.TrimPrefix(family.GetName(), "volume_manager_selinux_")+"{"+strings.Join(values, ",")+"}")
		}
	}
	return out
}

const labelOption = `context="system_u:object_r:container_file_t:s0:c1,c2"`

// TestVolumeIsMountedWithTheLabel mounts a ReadWriteOncePod volume: the driver gets the label in both calls, and it is stored for
// the next process.
func TestVolumeIsMountedWithTheLabel(t *testing.T) {
	f := newSELinuxFixture(t, false)
	f.createModeClaim("c", corev1.ReadWriteOncePod)
	p := labelled("u", "c", "s0:c1,c2", "s0:c1,c2")
	require.NoError(t, f.Mount(t.Context(), p))
	want := []string{"noatime", labelOption}
	require.Equal(t, want, csifake.Last[*csipb.NodeStageVolumeRequest](f.driver).GetVolumeCapability().GetMount().GetMountFlags())
	require.Equal(t, want, csifake.Last[*csipb.NodePublishVolumeRequest](f.driver).GetVolumeCapability().GetMount().GetMountFlags())
	require.False(t, f.Volumes("u")["v"].SELinuxRelabel)
	require.Equal(t, []string{"volumes_admitted_total{RWOP,kubernetes.io/csi:" + driverName + "}"}, f.gauges())
	files, err := filepath.Glob(filepath.Join(f.root, "plugins/kubernetes.io/csi", driverName, "*", "vol_data.json"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	data, err := os.ReadFile(files[0])
	require.NoError(t, err)
	require.Contains(t, string(data), `"seLinuxMountContext":"system_u:object_r:container_file_t:s0:c1,c2"`)

	f.restart()
	f.driver.Reset()
	require.NoError(t, f.Mount(t.Context(), p), "the same label as before the restart")
	require.NotContains(t, strings.Join(f.driver.Calls(), " "), "NodeUnstageVolume")
}

// TestVolumesThatAreNotMountedWithALabel has one reason each.
func TestVolumesThatAreNotMountedWithALabel(t *testing.T) {
	f := newSELinuxFixture(t, false)
	recursive := labelled("recursive", "a", "s0:c1")
	recursive.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxChangePolicy: ptr.To(corev1.SELinuxChangePolicyRecursive)}
	for claim, p := range map[string]*corev1.Pod{
		"a": recursive, "b": labelled("shared", "b", "s0:c1"), "c": pod("nolabel", claimVolume("v", "c")),
	} {
		mode := corev1.ReadWriteOncePod
		if claim == "b" {
			mode = corev1.ReadWriteOnce
		}
		f.createModeClaim(claim, mode)
		require.NoError(t, f.Mount(t.Context(), p))
		flags := csifake.Last[*csipb.NodePublishVolumeRequest](f.driver).GetVolumeCapability().GetMount().GetMountFlags()
		require.Equal(t, []string{"noatime"}, flags, "%s", p.UID)
	}
	require.Equal(t, []string{"volumes_admitted_total{RWO,kubernetes.io/csi:" + driverName + "}"}, f.gauges(),
		"it would be mounted with a label if all access modes were")
}

// TestLabelsThatConflict mounts volumes of Pods whose labels differ: in one Pod, and between two.
func TestLabelsThatConflict(t *testing.T) {
	f := newSELinuxFixture(t, true)
	f.createModeClaim("inside", corev1.ReadWriteMany)
	result := f.startMount(labelled("x", "inside", "s0:c1", "s0:c2"))
	require.Contains(t, f.nextEvent(), "have different SELinux labels")
	require.Contains(t, f.gauges(), "pod_context_mismatch_errors_total{RWX}")
	require.NoError(t, f.Unmount(t.Context(), "x"))
	require.Error(t, f.result(result))

	unknown := labelled("y", "inside", "s0:c1")
	unknown.Spec.Containers[0].SecurityContext.SELinuxOptions.Type = "unknown_t"
	result = f.startMount(unknown)
	require.Contains(t, f.nextEvent(), "no such type")
	require.Contains(t, f.gauges(), "container_errors_total{RWX}")
	require.NoError(t, f.Unmount(t.Context(), "y"))
	require.Error(t, f.result(result))

	f.createModeClaim("between", corev1.ReadWriteMany)
	require.NoError(t, f.Mount(t.Context(), labelled("a", "between", "s0:c1")))
	require.NoError(t, f.Mount(t.Context(), labelled("b", "between", "s0:c1")), "the same label")
	result = f.startMount(labelled("c", "between", "s0:c2"))
	require.Contains(t, f.nextEvent(), "conflicting SELinux labels")
	require.Contains(t, f.gauges(), "volume_context_mismatch_errors_total{RWX,kubernetes.io/csi:"+driverName+"}")
	require.NoError(t, f.Unmount(t.Context(), "a"))
	f.driver.Reset()
	require.NoError(t, f.Unmount(t.Context(), "b"))
	require.NoError(t, f.result(result), "the other Pods' end is an event")
	require.Contains(t, strings.Join(f.driver.Calls(), " "), "NodeUnstageVolume")
	flags := csifake.Last[*csipb.NodeStageVolumeRequest](f.driver).GetVolumeCapability().GetMount().GetMountFlags()
	require.Contains(t, flags, `context="system_u:object_r:container_file_t:s0:c2"`)
}

// TestConflictWithoutLabelsIsAWarning lets two Pods share a volume that is not mounted with a label.
func TestConflictWithoutLabelsIsAWarning(t *testing.T) {
	f := newSELinuxFixture(t, false)
	f.createModeClaim("c", corev1.ReadWriteMany)
	require.NoError(t, f.Mount(t.Context(), labelled("a", "c", "s0:c1")))
	require.NoError(t, f.Mount(t.Context(), labelled("b", "c", "s0:c2")))
	require.NoError(t, f.Mount(t.Context(), labelled("x", "c", "s0:c1", "s0:c2")))
	require.Contains(t, f.gauges(), "volume_context_mismatch_warnings_total{RWX,kubernetes.io/csi:"+driverName+"}")
	require.Contains(t, f.gauges(), "pod_context_mismatch_warnings_total{RWX}")
}
