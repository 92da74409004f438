package csi_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/volume"
)

func TestGroupOfThePod(t *testing.T) {
	for name, test := range map[string]struct {
		policy storagev1.FSGroupPolicy
		fsType string
		mode   corev1.PersistentVolumeAccessMode
		given  bool
	}{
		"default":              {"", "ext4", corev1.ReadWriteOnce, true},
		"default, no fsType":   {"", "", corev1.ReadWriteOnce, false},
		"default, many":        {"", "ext4", corev1.ReadWriteMany, false},
		"default, one pod":     {"", "ext4", corev1.ReadWriteOncePod, true},
		"file, many":           {storagev1.FileFSGroupPolicy, "", corev1.ReadWriteMany, true},
		"none":                 {storagev1.NoneFSGroupPolicy, "ext4", corev1.ReadWriteOnce, false},
		"default, spelled out": {storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy, "ext4", corev1.ReadWriteOnce, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			if test.policy != "" {
				f.object.Spec.FSGroupPolicy = &test.policy
			}
			f.start()
			spec := persistent("pv")
			spec.PV.Spec.CSI.FSType = test.fsType
			spec.PV.Spec.AccessModes[0] = test.mode
			request := f.request("uid", spec)
			request.FSGroup = ptr.To(int64(4321))
			mount, err := f.SetUp(t.Context(), request)
			require.NoError(t, err)
			info, err := os.Stat(mount.Path)
			require.NoError(t, err)
			require.Equal(t, test.given, info.Sys().(*syscall.Stat_t).Gid == 4321)
			require.NoError(t, f.TearDown(t.Context(), request.Dir))
		})
	}
}

// TestGroupOfVolumesOfSeveralModes has inline volumes, which have no access mode, and volumes whose first mode is not the one that counts.
func TestGroupOfVolumesOfSeveralModes(t *testing.T) {
	several := persistent("pv")
	several.PV.Spec.CSI.FSType = "ext4"
	several.PV.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany, corev1.ReadWriteOnce}
	for name, test := range map[string]struct {
		spec  volume.Spec
		given bool
	}{
		"inline":            {inline(&corev1.CSIVolumeSource{Driver: driverName, FSType: ptr.To("ext4")}), true},
		"inline, no fsType": {inline(&corev1.CSIVolumeSource{Driver: driverName}), false},
		"several modes":     {several, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.start()
			request := f.request("uid", test.spec)
			request.FSGroup = ptr.To(int64(4321))
			mount, err := f.SetUp(t.Context(), request)
			require.NoError(t, err)
			info, err := os.Stat(mount.Path)
			require.NoError(t, err)
			require.Equal(t, test.given, info.Sys().(*syscall.Stat_t).Gid == 4321)
			require.NoError(t, f.TearDown(t.Context(), request.Dir))
		})
	}
}

// TestGroupOfWhatARepublishedVolumeGets has a driver that writes new files each time that it is called.
func TestGroupOfWhatARepublishedVolumeGets(t *testing.T) {
	f := newFixture(t)
	f.object.Spec.RequiresRepublish = ptr.To(true)
	f.object.Spec.FSGroupPolicy = ptr.To(storagev1.FileFSGroupPolicy)
	f.start()
	request := f.request("uid", inline(&corev1.CSIVolumeSource{Driver: driverName}))
	request.FSGroup = ptr.To(int64(4321))
	mount, err := f.SetUp(t.Context(), request)
	require.NoError(t, err)
	file := filepath.Join(mount.Path, "renewed")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Chown(file, 0, 0))
	require.NoError(t, f.Refresh(t.Context(), request))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.EqualValues(t, 4321, info.Sys().(*syscall.Stat_t).Gid)
	require.Equal(t, os.FileMode(0o660), info.Mode())
	require.NoError(t, f.TearDown(t.Context(), request.Dir))
}
