package local_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/local"
	"github.com/berth-dev/berth/volume/mounts"
	"github.com/berth-dev/berth/volume/testsuite"
)

var here = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{corev1.LabelHostname: "here"}}}

func spec(path string) volume.Spec {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-1"}}
	pv.Spec.Local = &corev1.LocalVolumeSource{Path: path}
	pv.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"here"},
		}}}},
	}}
	return volume.Spec{Name: "data", PV: pv}
}

func TestContract(t *testing.T) {
	testsuite.Run(t, testsuite.Subject{
		New:      func(*testing.T) volume.Plugin { return local.New(mounts.Syscalls{}) },
		Spec:     func(_ *testing.T, scratch string) volume.Spec { return spec(scratch) },
		Node:     here,
		Writable: true, Persistent: true,
	})
}

// newRequest is a volume's directory and a request for it.
func newRequest(t *testing.T) (string, volume.Request, *local.Plugin) {
	t.Helper()
	root := testsuite.Root(t)
	data := filepath.Join(root, "data")
	require.NoError(t, os.Mkdir(data, 0o700))
	request := volume.Request{Pod: &corev1.Pod{}, Node: here, Spec: spec(data), Dir: volume.Dir(root, "u", local.Name, "pv-1")}
	plugin := local.New(mounts.Syscalls{})
	t.Cleanup(func() { _ = unix.Unmount(request.Dir, unix.MNT_DETACH) })
	return data, request, plugin
}

func TestReadOnly(t *testing.T) {
	_, request, plugin := newRequest(t)
	request.ReadOnly = true
	mount, err := plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	require.True(t, mount.ReadOnly)
	require.ErrorIs(t, os.WriteFile(filepath.Join(mount.Path, "f"), nil, 0o644), unix.EROFS)
}

func TestGroup(t *testing.T) {
	data, request, plugin := newRequest(t)
	require.NoError(t, os.WriteFile(filepath.Join(data, "f"), nil, 0o600))
	gid := int64(4711)
	request.FSGroup = &gid
	_, err := plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(data, "f"))
	require.NoError(t, err)
	require.EqualValues(t, gid, info.Sys().(*syscall.Stat_t).Gid)
	require.Equal(t, os.FileMode(0o660), info.Mode())
}

func TestReplacedDirectoryIsMountedAnew(t *testing.T) {
	data, request, plugin := newRequest(t)
	_, err := plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	require.NoError(t, os.Rename(data, data+".old"))
	require.NoError(t, os.Mkdir(data, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(data, "new"), nil, 0o600))
	mount, err := plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(mount.Path, "new"))
}

func TestRefusals(t *testing.T) {
	data, request, plugin := newRequest(t)
	file := filepath.Join(filepath.Dir(data), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	elsewhere := here.DeepCopy()
	elsewhere.Labels[corev1.LabelHostname] = "elsewhere"
	for name, test := range map[string]struct {
		change func(*volume.Request)
		err    string
	}{
		"missing":     {func(r *volume.Request) { r.Spec = spec(data + "/missing") }, "no such file"},
		"file":        {func(r *volume.Request) { r.Spec = spec(file) }, "is not a directory"},
		"other node":  {func(r *volume.Request) { r.Node = elsewhere }, "on another node"},
		"no node":     {func(r *volume.Request) { r.Node = nil }, "not known yet"},
		"no affinity": {func(r *volume.Request) { r.Spec.PV.Spec.NodeAffinity = nil }, "no spec.nodeAffinity"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := request
			changed.Spec = spec(data)
			test.change(&changed)
			_, err := plugin.SetUp(t.Context(), changed)
			require.ErrorContains(t, err, test.err)
			require.ErrorContains(t, err, "pv-1")
			require.NoDirExists(t, changed.Dir)
		})
	}
}
