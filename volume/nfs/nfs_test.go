package nfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/volume"
	"github.com/berth-dev/berth/volume/nfs"
	"github.com/berth-dev/berth/volume/testsuite"
)

func spec(server, path string) volume.Spec {
	return volume.Spec{Name: "data", Volume: &corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
		NFS: &corev1.NFSVolumeSource{Server: server, Path: path}}}}
}

// helper is a replacement of mount.nfs: it bind-mounts the path, which is local, and writes its arguments to a file.
func helper(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mount.nfs")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755))
	return path
}

const binds = `printf '%s\n' "$@" >"$0.args"; mount --bind "${1##*:}" "$2"`

func TestContract(t *testing.T) {
	testsuite.Run(t, testsuite.Subject{
		New: func(t *testing.T) volume.Plugin {
			return nfs.New(nfs.Deps{}, nfs.Config{Helper: helper(t, binds)})
		},
		Spec:     func(_ *testing.T, scratch string) volume.Spec { return spec("server", scratch) },
		Writable: true, Persistent: true,
	})
}

func TestArgumentsOfTheHelper(t *testing.T) {
	root := testsuite.Root(t)
	program := helper(t, binds)
	plugin := nfs.New(nfs.Deps{}, nfs.Config{Helper: program})
	pv := &corev1.PersistentVolume{}
	pv.Name = "pv-1"
	pv.Spec.NFS = &corev1.NFSVolumeSource{Server: "fd00::1", Path: t.TempDir()}
	pv.Spec.MountOptions = []string{"nfsvers=4.2", "hard"}
	request := volume.Request{
		Pod: &corev1.Pod{}, Spec: volume.Spec{Name: "data", PV: pv}, ReadOnly: true,
		Dir: volume.Dir(root, "u", nfs.Name, "pv-1"),
	}
	mount, err := plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	require.Equal(t, volume.Mount{Path: request.Dir, ReadOnly: true}, mount)
	arguments, err := os.ReadFile(program + ".args")
	require.NoError(t, err)
	require.Equal(t, "[fd00::1]:"+pv.Spec.NFS.Path+"\n"+request.Dir+"\n-o\nnfsvers=4.2,hard,ro\n", string(arguments))
	require.NoError(t, plugin.TearDown(t.Context(), request.Dir))

	pv.Annotations = map[string]string{"volume.beta.kubernetes.io/mount-options": "soft,noatime"}
	_, err = plugin.SetUp(t.Context(), request)
	require.NoError(t, err)
	arguments, err = os.ReadFile(program + ".args")
	require.NoError(t, err)
	require.Contains(t, string(arguments), "\n-o\nsoft,noatime,ro\n", "the annotation has precedence")
	require.NoError(t, plugin.TearDown(t.Context(), request.Dir))
}

func TestFailures(t *testing.T) {
	root := testsuite.Root(t)
	for name, test := range map[string]struct {
		helper, server, path, err string
	}{
		"missing helper": {"/nowhere/mount.nfs", "s", "/p", "install the package nfs-common"},
		"refused":        {helper(t, "echo access denied by server >&2; exit 32"), "s", "/p", "from s:/p: mount.nfs: exit status 32: access denied by server"},
		"half done":      {helper(t, `mount --bind / "$2"; exit 1`), "s", "/p", "exit status 1"},
		"no server":      {helper(t, binds), "", "/p", "nfs.server"},
		"an option":      {helper(t, binds), "-o", "/p", "nfs.server"},
		"no path":        {helper(t, binds), "s", "p", "nfs.path"},
	} {
		t.Run(name, func(t *testing.T) {
			plugin := nfs.New(nfs.Deps{}, nfs.Config{Helper: test.helper})
			request := volume.Request{Pod: &corev1.Pod{}, Spec: spec(test.server, test.path),
				Dir: volume.Dir(root, "u", nfs.Name, "data")}
			_, err := plugin.SetUp(t.Context(), request)
			require.ErrorContains(t, err, test.err)
			require.ErrorContains(t, err, `"data"`)
			require.NoDirExists(t, request.Dir, "a failure leaves nothing")
		})
	}
}
