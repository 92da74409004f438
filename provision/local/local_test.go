package local_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/provision"
	"github.com/berth-dev/berth/provision/local"
)

func newProvisioner(t *testing.T, root string) (*local.Provisioner, *record.FakeRecorder) {
	t.Helper()
	events := record.NewFakeRecorder(100)
	p, err := local.New(local.Deps{Events: events}, local.Config{Root: root, NodeName: "here"})
	require.NoError(t, err)
	return p, events
}

func options(name string) provision.VolumeOptions {
	return provision.VolumeOptions{
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		PVName:                        name,
		SelectedNode: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "here", Labels: map[string]string{corev1.LabelHostname: "here.example"}}},
		PVC: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim"},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Mi")}},
			},
		},
	}
}

func TestVolumeIsADirectoryOfItsNode(t *testing.T) {
	root := filepath.Join(t.TempDir(), "volumes")
	p, _ := newProvisioner(t, root)
	old := syscall.Umask(0o077) // the mode must not depend on it
	defer syscall.Umask(old)
	pv, err := p.Provision(options("pvc-1"))
	require.NoError(t, err)

	require.Equal(t, filepath.Join(root, "pvc-1"), pv.Spec.Local.Path)
	require.Equal(t, "pvc-1", pv.Name)
	require.Equal(t, resource.MustParse("8Mi"), pv.Spec.Capacity[corev1.ResourceStorage])
	require.Equal(t, corev1.PersistentVolumeFilesystem, *pv.Spec.VolumeMode)
	require.Equal(t, corev1.PersistentVolumeReclaimDelete, pv.Spec.PersistentVolumeReclaimPolicy)
	require.Equal(t, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, pv.Spec.AccessModes)
	terms := pv.Spec.NodeAffinity.Required.NodeSelectorTerms
	require.Equal(t, []corev1.NodeSelectorRequirement{{
		Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"here.example"},
	}}, terms[0].MatchExpressions)

	info, err := os.Stat(pv.Spec.Local.Path)
	require.NoError(t, err)
	require.True(t, info.IsDir())
	require.Equal(t, os.FileMode(0o777), info.Mode().Perm())
	info, err = os.Stat(root)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), info.Mode().Perm())
}

func TestProvisionAgainKeepsWhatIsThere(t *testing.T) {
	p, events := newProvisioner(t, t.TempDir())
	first, err := p.Provision(options("pvc-1"))
	require.NoError(t, err)
	file := filepath.Join(first.Spec.Local.Path, "data")
	require.NoError(t, os.WriteFile(file, []byte("kept"), 0o600))
	require.NoError(t, os.Chmod(first.Spec.Local.Path, 0o770)) // as a kubelet does for an fsGroup

	second, err := p.Provision(options("pvc-1"))
	require.NoError(t, err)
	require.Equal(t, first, second)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "kept", string(data))
	info, err := os.Stat(first.Spec.Local.Path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o770), info.Mode().Perm())
	require.LessOrEqual(t, len(events.Events), 1, "the event on the size comes once")
}

func TestRefusedClaimsNameTheField(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*provision.VolumeOptions)
		field  string
	}{
		"block": {func(o *provision.VolumeOptions) {
			o.PVC.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
		}, "spec.volumeMode"},
		"many": {func(o *provision.VolumeOptions) {
			o.PVC.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteMany}
		}, "spec.accessModes"},
		"read only": {func(o *provision.VolumeOptions) {
			o.PVC.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadOnlyMany}
		}, "spec.accessModes"},
		"selector": {func(o *provision.VolumeOptions) { o.PVC.Spec.Selector = &metav1.LabelSelector{} }, "spec.selector"},
		"source": {func(o *provision.VolumeOptions) {
			o.PVC.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "other"}
		}, "spec.dataSource"},
		"parameter": {func(o *provision.VolumeOptions) {
			o.Parameters = map[string]string{"fsType": "ext4"}
		}, `parameter "fsType"`},
		"immediate": {func(o *provision.VolumeOptions) { o.SelectedNode = nil }, "WaitForFirstConsumer"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			p, _ := newProvisioner(t, root)
			o := options("pvc-1")
			test.change(&o)
			_, state, err := p.ProvisionContext(t.Context(), o)
			require.ErrorContains(t, err, test.field)
			require.ErrorAs(t, err, new(*provision.InfeasibleError), "asked again unchanged it is refused again")
			require.Equal(t, provision.ProvisioningFinished, state)
			left, err := os.ReadDir(root)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestOtherNodesAreIgnored(t *testing.T) {
	p, _ := newProvisioner(t, t.TempDir())
	o := options("pvc-1")
	o.SelectedNode.Name = "there"
	_, err := p.Provision(o)
	var ignored *provision.IgnoredError
	require.ErrorAs(t, err, &ignored)

	pv, err := p.Provision(options("pvc-2"))
	require.NoError(t, err)
	path := pv.Spec.Local.Path
	pv.Annotations[local.AnnNode] = "there"
	require.ErrorAs(t, p.Delete(pv), &ignored)
	require.DirExists(t, path)

	claim := o.PVC
	require.True(t, p.ShouldProvision(claim))
	claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "there"}
	require.False(t, p.ShouldProvision(claim))
	claim.Annotations["volume.kubernetes.io/selected-node"] = "here"
	require.True(t, p.ShouldProvision(claim))
}

func TestDeleteRemovesOnlyTheVolume(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	require.NoError(t, os.Mkdir(outside, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "precious"), nil, 0o600))
	p, _ := newProvisioner(t, filepath.Join(base, "volumes"))
	pv, err := p.Provision(options("pvc-1"))
	require.NoError(t, err)
	other, err := p.Provision(options("pvc-2"))
	require.NoError(t, err)

	dir := pv.Spec.Local.Path
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "a/b/c"), 0o700))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink("..", filepath.Join(dir, "a/up")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "a/pipe"), 0o600))
	for i := range 1500 { // more than one read of the directory
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a", fmt.Sprint(i)), nil, 0o400))
	}
	require.NoError(t, os.Chmod(filepath.Join(dir, "a/b"), 0))

	require.NoError(t, p.Delete(pv))
	require.NoDirExists(t, dir)
	require.FileExists(t, filepath.Join(outside, "precious"))
	require.DirExists(t, other.Spec.Local.Path)
	require.NoError(t, p.Delete(pv), "deleting again is no error")
}

// A Pod can make directories deeper than the node has descriptors and longer than the longest path.
func TestDeleteRemovesTheDeepestTree(t *testing.T) {
	p, _ := newProvisioner(t, t.TempDir())
	pv, err := p.Provision(options("pvc-1"))
	require.NoError(t, err)
	dir, err := os.OpenRoot(pv.Spec.Local.Path)
	require.NoError(t, err)
	for range 1200 {
		require.NoError(t, dir.Mkdir("deeper", 0o700))
		require.NoError(t, dir.WriteFile("file", nil, 0o600))
		next, err := dir.OpenRoot("deeper")
		require.NoError(t, err)
		require.NoError(t, dir.Close())
		dir = next
	}
	require.NoError(t, dir.Close())
	require.NoError(t, p.Delete(pv))
	require.NoDirExists(t, pv.Spec.Local.Path)
}

func TestDeleteRefusesWhatIsNotItsOwn(t *testing.T) {
	root := t.TempDir()
	p, _ := newProvisioner(t, root)
	pv, err := p.Provision(options("pvc-1"))
	require.NoError(t, err)
	for name, change := range map[string]func(*corev1.PersistentVolume){
		"another path": func(pv *corev1.PersistentVolume) { pv.Spec.Local.Path = "/etc" },
		"no path":      func(pv *corev1.PersistentVolume) { pv.Spec.Local = nil },
		"root itself":  func(pv *corev1.PersistentVolume) { pv.Name, pv.Spec.Local.Path = ".", root },
		"above":        func(pv *corev1.PersistentVolume) { pv.Name, pv.Spec.Local.Path = "..", filepath.Dir(root) },
		"below":        func(pv *corev1.PersistentVolume) { pv.Name, pv.Spec.Local.Path = "pvc-1/x", root+"/pvc-1/x" },
	} {
		t.Run(name, func(t *testing.T) {
			bad := pv.DeepCopy()
			change(bad)
			require.Error(t, p.Delete(bad))
			require.DirExists(t, pv.Spec.Local.Path)
		})
	}
	t.Run("a link in its place", func(t *testing.T) {
		target := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(target, "precious"), nil, 0o600))
		link := pv.DeepCopy()
		link.Name, link.Spec.Local.Path = "pvc-link", filepath.Join(root, "pvc-link")
		require.NoError(t, os.Symlink(target, link.Spec.Local.Path))
		require.Error(t, p.Delete(link))
		o := options("pvc-link")
		_, err := p.Provision(o)
		require.Error(t, err)
		require.FileExists(t, filepath.Join(target, "precious"))
	})
}

// A root that cannot be made leaves nothing behind, so a claim is not held for it.
func TestUnusableRootIsAFinalError(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	p, _ := newProvisioner(t, filepath.Join(file, "volumes"))
	_, state, err := p.ProvisionContext(t.Context(), options("pvc-1"))
	require.ErrorContains(t, err, file)
	require.Equal(t, provision.ProvisioningFinished, state)
}

func TestDeleteStopsAndResumes(t *testing.T) {
	p, _ := newProvisioner(t, t.TempDir())
	pv, err := p.Provision(options("pvc-1"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(pv.Spec.Local.Path, "file"), nil, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.DeleteContext(ctx, pv), context.Canceled)
	require.DirExists(t, pv.Spec.Local.Path)
	require.NoError(t, p.DeleteContext(t.Context(), pv))
	require.NoDirExists(t, pv.Spec.Local.Path)
}

func mount(t *testing.T, source, target, kind string, flags uintptr) {
	t.Helper()
	err := syscall.Mount(source, target, kind, flags, "")
	if errors.Is(err, syscall.EPERM) {
		t.Skip("not allowed to mount")
	}
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Unmount(target, syscall.MNT_DETACH) })
}

func TestDeleteNeverCrossesAMount(t *testing.T) {
	for name, make := range map[string]func(t *testing.T, dir string) (file string){
		"other filesystem below": func(t *testing.T, dir string) string {
			target := filepath.Join(dir, "sub/mnt")
			require.NoError(t, os.MkdirAll(target, 0o700))
			mount(t, "tmpfs", target, "tmpfs", 0)
			return filepath.Join(target, "precious")
		},
		"same filesystem below": func(t *testing.T, dir string) string {
			target, source := filepath.Join(dir, "mnt"), t.TempDir()
			require.NoError(t, os.MkdirAll(target, 0o700))
			mount(t, source, target, "", syscall.MS_BIND)
			return filepath.Join(source, "precious")
		},
		"on the volume": func(t *testing.T, dir string) string {
			mount(t, "tmpfs", dir, "tmpfs", 0)
			return filepath.Join(dir, "precious")
		},
		"the volume elsewhere": func(t *testing.T, dir string) string {
			mount(t, dir, t.TempDir(), "", syscall.MS_BIND)
			return filepath.Join(dir, "precious")
		},
		"a part of the volume elsewhere": func(t *testing.T, dir string) string {
			sub := filepath.Join(dir, "sub")
			require.NoError(t, os.Mkdir(sub, 0o700))
			mount(t, sub, t.TempDir(), "", syscall.MS_BIND)
			return filepath.Join(sub, "precious")
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newProvisioner(t, t.TempDir())
			pv, err := p.Provision(options("pvc-1"))
			require.NoError(t, err)
			file := make(t, pv.Spec.Local.Path)
			require.NoError(t, os.WriteFile(file, nil, 0o600))
			require.ErrorContains(t, p.Delete(pv), "mount")
			require.FileExists(t, file)
		})
	}
}

func TestUnenforcedSizeIsReported(t *testing.T) {
	root := t.TempDir()
	mount(t, "tmpfs", root, "tmpfs", 0) // has no project quota
	p, events := newProvisioner(t, root)
	for range 2 {
		_, err := p.Provision(options("pvc-1"))
		require.NoError(t, err)
	}
	require.Len(t, events.Events, 1)
	event := <-events.Events
	require.Contains(t, event, local.ReasonSizeNotEnforced)
	require.Contains(t, event, "8Mi")
}

func TestConfigIsChecked(t *testing.T) {
	for field, config := range map[string]local.Config{
		"Root":     {Root: "relative", NodeName: "here"},
		"NodeName": {Root: "/somewhere"},
	} {
		_, err := local.New(local.Deps{}, config)
		require.ErrorContains(t, err, field)
	}
	_, err := local.New(local.Deps{}, local.Config{Root: "/", NodeName: "here"})
	require.ErrorContains(t, err, "Root")
}
