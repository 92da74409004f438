package hostpath_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/hostpath"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

func spec(path string, kind corev1.HostPathType) volume.Spec {
	return volume.Spec{Name: "host", Volume: &corev1.Volume{Name: "host", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}}}
}

func TestContract(t *testing.T) {
	for _, kind := range []string{"pod", "persistent volume"} {
		t.Run(kind, func(t *testing.T) {
			testsuite.Run(t, testsuite.Subject{
				New: func(*testing.T) volume.Plugin { return hostpath.New(mounts.Syscalls{}) },
				Spec: func(_ *testing.T, scratch string) volume.Spec {
					inline := spec(scratch, corev1.HostPathDirectory)
					if kind == "pod" {
						return inline
					}
					pv := &corev1.PersistentVolume{}
					pv.Name, pv.Spec.HostPath = "pv-1", inline.Volume.HostPath
					return volume.Spec{Name: "host", PV: pv}
				},
				Writable: true, Persistent: true, NoDir: true,
			})
		})
	}
}

func TestMountOptionsAreRefused(t *testing.T) {
	pv := &corev1.PersistentVolume{}
	pv.Name, pv.Spec.HostPath = "pv-1", &corev1.HostPathVolumeSource{Path: t.TempDir()}
	for _, change := range []func(){
		func() { pv.Spec.MountOptions = []string{"noexec", "ro"} },
		func() {
			pv.Spec.MountOptions, pv.Annotations = nil, map[string]string{"volume.beta.kubernetes.io/mount-options": "noexec,ro"}
		},
	} {
		change()
		_, err := hostpath.New(mounts.Syscalls{}).SetUp(t.Context(), volume.Request{Spec: volume.Spec{Name: "host", PV: pv}})
		require.ErrorContains(t, err, "mount options are not supported for this volume type")
		require.ErrorContains(t, err, `"pv-1" is not mounted with "noexec,ro"`)
	}
}

// TestEmptyMountOptionsAreNone has an annotation that is there and names nothing.
func TestEmptyMountOptionsAreNone(t *testing.T) {
	pv := &corev1.PersistentVolume{}
	pv.Name, pv.Spec.HostPath = "pv-1", &corev1.HostPathVolumeSource{Path: t.TempDir()}
	pv.Spec.MountOptions, pv.Annotations = []string{"ro"}, map[string]string{"volume.beta.kubernetes.io/mount-options": ""}
	_, err := hostpath.New(mounts.Syscalls{}).SetUp(t.Context(), volume.Request{Spec: volume.Spec{Name: "host", PV: pv}})
	require.NoError(t, err)
	pv.Annotations["volume.beta.kubernetes.io/mount-options"] = "hard,,nfsvers=4.1,"
	require.Equal(t, []string{"hard", "nfsvers=4.1"}, volume.Spec{PV: pv}.MountOptions())
}

func TestTypes(t *testing.T) {
	dir := t.TempDir()
	file, sub, socket := filepath.Join(dir, "file"), filepath.Join(dir, "sub"), filepath.Join(dir, "socket")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.NoError(t, os.Mkdir(sub, 0o700))
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	missing := filepath.Join(dir, "missing")
	link := func(name, target string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.Symlink(target, path))
		return path
	}
	for _, test := range []struct {
		kind corev1.HostPathType
		path string
		err  string
	}{
		{corev1.HostPathUnset, missing, ""},
		{corev1.HostPathUnset, dir + "/../x", "must not contain '..'"},
		{corev1.HostPathDirectory, sub, ""},
		{corev1.HostPathDirectory, file, "hostPath type check failed: " + file + " is not a directory"},
		{corev1.HostPathDirectory, missing, "is not a directory"},
		{corev1.HostPathFile, file, ""},
		{corev1.HostPathFile, sub, "is not a file"},
		{corev1.HostPathFile, socket, "is not a file"},
		{corev1.HostPathSocket, socket, ""},
		{corev1.HostPathSocket, file, "is not a socket file"},
		{corev1.HostPathCharDev, "/dev/null", ""},
		{corev1.HostPathCharDev, file, "is not a character device"},
		{corev1.HostPathBlockDev, "/dev/null", "is not a block device"},
		{corev1.HostPathDirectoryOrCreate, sub, ""},
		{corev1.HostPathDirectoryOrCreate, file, "is not a directory"},
		{corev1.HostPathFileOrCreate, file, ""},
		{corev1.HostPathFileOrCreate, sub, "is not a file"},
		{corev1.HostPathFileOrCreate, link("to-file", "file"), ""},
		{corev1.HostPathFileOrCreate, link("to-nothing", "made"), ""},
		{corev1.HostPathFile, filepath.Join(dir, "made"), ""},
		{corev1.HostPathFileOrCreate, filepath.Join(missing, "file"), "no such file"},
		{corev1.HostPathType("Tape"), file, "invalid volume type"},
	} {
		_, err := hostpath.New(mounts.Syscalls{}).SetUp(t.Context(), volume.Request{Spec: spec(test.path, test.kind)})
		if test.err == "" {
			require.NoError(t, err, "%s %s", test.kind, test.path)
		} else {
			require.ErrorContains(t, err, test.err, "%s %s", test.kind, test.path)
		}
	}
	for kind, want := range map[corev1.HostPathType]os.FileMode{
		corev1.HostPathDirectoryOrCreate: os.ModeDir | 0o755, corev1.HostPathFileOrCreate: 0o644,
	} {
		path := filepath.Join(dir, "new-"+string(kind))
		_, err := hostpath.New(mounts.Syscalls{}).SetUp(t.Context(), volume.Request{Spec: spec(path, kind)})
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, want, info.Mode())
	}
}
