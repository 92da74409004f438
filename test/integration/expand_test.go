//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/csidriver"
)

// TestExpansion requests more storage for claims, as a user does, and checks that their Pods get it.
func TestExpansion(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	class := csidriver.StorageClass()
	class.Name, class.Annotations = "xfs", nil
	class.Parameters = map[string]string{"csi.storage.k8s.io/fstype": "xfs"}
	_, err := c.client().StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Run("while a Pod uses it", func(t *testing.T) { growInUse(t, c) })
	t.Run("ext4 while a Pod uses it", func(t *testing.T) { growExt4(t, c) })
	t.Run("without a Pod", func(t *testing.T) { growUnused(t, c) })
	t.Run("a block device", func(t *testing.T) { growBlock(t, c) })
	t.Run("too much, and then less", func(t *testing.T) { growTooFar(t, c) })
	t.Run("a class of attributes", func(t *testing.T) { modifyInUse(t, c) })
	t.Run("killed midway", func(t *testing.T) { growKilled(t, c) })
	c.stop()
	require.Empty(t, c.leftovers())
	require.Empty(t, c.loopDevices())
}

// expansion is a Pod that uses a claim of its name.
type expansion struct {
	t    *testing.T
	c    *cluster
	name string
}

// newExpansion makes the claim, and a Pod that uses it, and waits until it runs.
func newExpansion(t *testing.T, c *cluster, name, class, size, mode string) *expansion {
	t.Helper()
	g := &expansion{t, c, name}
	c.apply(fmt.Sprintf(`{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": %q}, "spec": {"storageClassName": %q,
		"volumeMode": %q, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": %q}}}}`, name, class, mode, size))
	g.run(mode)
	return g
}

func (g *expansion) run(mode string) *corev1.Pod {
	g.t.Helper()
	use := `"volumeMounts": [{"name": "v", "mountPath": "/disk"}]`
	if mode == "Block" {
		use = `"volumeDevices": [{"name": "v", "devicePath": "/dev/disk"}]`
	}
	g.c.apply(podManifest(g.name, shell("sleep 1000000", use),
		`"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "`+g.name+`"}}]`))
	return g.c.waitPod("name="+g.name, "running", isReady)
}

func (g *expansion) exec(command ...string) string {
	g.t.Helper()
	args := append([]string{"kubectl", "exec", g.name, "--", "/bin/busybox"}, command...)
	return strings.TrimSpace(g.c.mustRun(args...))
}

// filesystemSize returns the size of the Pod's file system in bytes, as statfs(2) reports it in the Pod.
func (g *expansion) filesystemSize() int {
	g.t.Helper()
	lines := strings.Split(g.exec("df", "-k", "/disk"), "\n")
	size, err := strconv.Atoi(strings.Fields(lines[len(lines)-1])[1])
	require.NoError(g.t, err)
	return size << 10
}

func (g *expansion) request(size string) {
	g.t.Helper()
	g.c.mustRun("kubectl", "patch", "pvc", g.name, "-p", `{"spec": {"resources": {"requests": {"storage": "`+size+`"}}}}`)
}

// wait waits until the claim is as wanted, and returns it.
func (g *expansion) wait(what string, satisfied func(*corev1.PersistentVolumeClaim) bool) *corev1.PersistentVolumeClaim {
	g.t.Helper()
	claim, err := waitClaim(g.t.Context(), g.c, g.name, satisfied)
	if err != nil {
		out, _ := g.c.run("kubectl", "describe", "pvc", g.name)
		require.NoError(g.t, err, "wait for claim %s to be %s; it is:\n%s", g.name, what, out)
	}
	return claim
}

func waitClaim(ctx context.Context, c *cluster, name string, satisfied func(*corev1.PersistentVolumeClaim) bool,
) (*corev1.PersistentVolumeClaim, error) {
	api := c.client().CoreV1().PersistentVolumeClaims("default")
	only := fields.OneTermEqualSelector("metadata.name", name).String()
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = only
			return api.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = only
			return api.Watch(ctx, options)
		},
	}
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	var found *corev1.PersistentVolumeClaim
	_, err := watchtools.UntilWithSync(ctx, source, &corev1.PersistentVolumeClaim{}, nil, func(event watch.Event) (bool, error) {
		claim, ok := event.Object.(*corev1.PersistentVolumeClaim)
		if !ok || event.Type == watch.Deleted || !satisfied(claim) {
			return false, nil
		}
		found = claim
		return true, nil
	})
	return found, err
}

func has(size string) func(*corev1.PersistentVolumeClaim) bool {
	return func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.Status.Capacity.Storage().String() == size
	}
}

// checkExpanded waits until the claim has its size, and its status mentions no expansion any more.
func (g *expansion) checkExpanded(size string) {
	g.t.Helper()
	claim := g.wait("of "+size, func(claim *corev1.PersistentVolumeClaim) bool {
		return has(size)(claim) && len(claim.Status.Conditions) == 0 && len(claim.Status.AllocatedResourceStatuses) == 0
	})
	require.Equal(g.t, size, claim.Status.AllocatedResources.Storage().String())
	pv, err := g.c.client().CoreV1().PersistentVolumes().Get(g.t.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	require.NoError(g.t, err)
	require.Equal(g.t, size, pv.Spec.Capacity.Storage().String())
}

func (g *expansion) explain() string {
	g.t.Helper()
	out, _ := g.c.run("explain", "pvc/"+g.name) // it ends with 1 for what waits
	return out
}

func (g *expansion) remove() {
	g.t.Helper()
	g.c.mustRun("kubectl", "delete", "pod", g.name, "--timeout=2m", "--ignore-not-found")
	g.c.mustRun("kubectl", "delete", "pvc", g.name, "--timeout=2m")
}

func growInUse(t *testing.T, c *cluster) {
	g := newExpansion(t, c, "in-use", "xfs", "320Mi", "Filesystem")
	before := g.filesystemSize()
	began := time.Now()
	g.request("640Mi")
	g.checkExpanded("640Mi")
	t.Logf("it took %s from the request to the claim's new capacity", time.Since(began).Round(time.Millisecond))
	require.Greater(t, g.filesystemSize(), before+300<<20)
	pod := c.waitPod("name=in-use", "running", isReady)
	require.Zero(t, pod.Status.ContainerStatuses[0].RestartCount)
	explanation := g.explain()
	require.Contains(t, explanation, "bound to volume")
	require.Contains(t, explanation, "ExpandingVolume")
	require.Contains(t, explanation, "GrowingOnNode")
	c.waitEvents("default", g.name, "Resizing: ", "FileSystemResizeRequired: ", "FileSystemResizeSuccessful: ")
	g.remove()
}

// growExt4 is about the default: the kernel expands a mounted ext4 only for processes with CAP_SYS_RESOURCE, which
// containers often lack. Then it is expanded when it is staged for the next Pod, and berth says so.
func growExt4(t *testing.T, c *cluster) {
	g := newExpansion(t, c, "ext4", "berth-loop", "64Mi", "Filesystem")
	before := g.filesystemSize()
	g.request("128Mi")
	if !mayGrowMounted(t) {
		g.wait("not expanded, with the reason", func(claim *corev1.PersistentVolumeClaim) bool {
			return strings.Contains(fmt.Sprint(claim.Status.Conditions), "CAP_SYS_RESOURCE")
		})
		require.Contains(t, g.explain(), "the filesystem grows when the volume is next staged")
		require.Equal(t, before, g.filesystemSize())
		c.mustRun("kubectl", "delete", "pod", g.name, "--timeout=2m")
		g.run("Filesystem")
	}
	g.checkExpanded("128Mi")
	require.Greater(t, g.filesystemSize(), before+50<<20)
	g.remove()
}

func mayGrowMounted(t *testing.T) bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &data[0]))
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

func growUnused(t *testing.T, c *cluster) {
	g := newExpansion(t, c, "unused", "berth-loop", "64Mi", "Filesystem")
	before := g.filesystemSize()
	c.mustRun("kubectl", "delete", "pod", g.name, "--timeout=2m")
	g.request("128Mi")
	claim := g.wait("waiting for a Pod", func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.Status.AllocatedResourceStatuses["storage"] == corev1.PersistentVolumeClaimNodeResizePending
	})
	require.Contains(t, fmt.Sprint(claim.Status.Conditions), corev1.PersistentVolumeClaimFileSystemResizePending)
	require.Contains(t, g.explain(), "the file system follows when a pod uses it")
	g.run("Filesystem")
	g.checkExpanded("128Mi")
	require.Greater(t, g.filesystemSize(), before+50<<20)
	g.remove()
}

func growBlock(t *testing.T, c *cluster) {
	g := newExpansion(t, c, "block", "berth-loop", "64Mi", "Block")
	size := func() string { return g.exec("blockdev", "--getsize64", "/dev/disk") }
	require.Equal(t, strconv.Itoa(64<<20), size())
	g.request("128Mi")
	g.checkExpanded("128Mi")
	require.Equal(t, strconv.Itoa(128<<20), size())
	g.remove()
}

func growTooFar(t *testing.T, c *cluster) {
	g := newExpansion(t, c, "too-far", "berth-loop", "64Mi", "Filesystem")
	c.mustRun("kubectl", "delete", "pod", g.name, "--timeout=2m")
	g.request("1000Ti")
	g.wait("refused for lack of space", func(claim *corev1.PersistentVolumeClaim) bool {
		return strings.Contains(fmt.Sprint(claim.Status.Conditions), string(corev1.PersistentVolumeClaimControllerResizeError))
	})
	require.Contains(t, g.explain(), "waiting: it has 64Mi and asks for 1000Ti; ")
	require.Contains(t, g.explain(), `parameter "overcommit"`)
	c.waitEvents("default", g.name, "VolumeResizeFailed: ")
	out, err := c.run("kubectl", "patch", "pvc", g.name, "-p", `{"spec": {"resources": {"requests": {"storage": "64Mi"}}}}`)
	require.Error(t, err, "the API server accepts no less than its capacity: %s", out)
	g.request("96Mi")
	g.wait("waiting for a Pod", func(claim *corev1.PersistentVolumeClaim) bool {
		return claim.Status.AllocatedResourceStatuses["storage"] == corev1.PersistentVolumeClaimNodeResizePending
	})
	g.run("Filesystem")
	g.checkExpanded("96Mi")
	g.remove()
}

// growKilled kills berth at random moments of an expansion, and starts it again.
func growKilled(t *testing.T, c *cluster) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var all []*expansion
	before := map[string]int{}
	for i := range 3 {
		g := newExpansion(t, c, fmt.Sprintf("killed-%d", i), "xfs", "320Mi", "Filesystem")
		all, before[g.name] = append(all, g), g.filesystemSize()
	}
	for round, size := range []string{"400Mi", "480Mi", "560Mi", "640Mi"} {
		events := random.IntN(6)
		watching, stop := context.WithTimeout(t.Context(), waitTimeout)
		changes, err := c.client().CoreV1().PersistentVolumeClaims("default").Watch(watching, metav1.ListOptions{})
		require.NoError(t, err)
		for _, g := range all {
			patch, err := json.Marshal(map[string]any{"spec": map[string]any{"resources": map[string]any{
				"requests": map[string]any{"storage": size}}}})
			require.NoError(t, err)
			_, err = c.client().CoreV1().PersistentVolumeClaims("default").Patch(t.Context(), g.name,
				types.MergePatchType, patch, metav1.PatchOptions{})
			require.NoError(t, err)
		}
		var last string
		for seen := 0; seen < len(all)+events; {
			event, open := <-changes.ResultChan()
			require.True(t, open, "round %d: the watch ended after %d events", round, seen)
			if claim, ok := event.Object.(*corev1.PersistentVolumeClaim); ok && event.Type == watch.Modified {
				seen++
				last = fmt.Sprintf("%s %v", claim.Name, claim.Status.AllocatedResourceStatuses)
			}
		}
		stop()
		c.killBerth()
		t.Logf("round %d: killed %d events after the requests, the last of them %s", round, events, last)
		c.up("--unsafe-no-fsync")
	}
	for _, g := range all {
		g.checkExpanded("640Mi")
		require.Greater(t, g.filesystemSize(), before[g.name]+300<<20)
		pod := c.waitPod("name="+g.name, "running", isReady)
		require.Zero(t, pod.Status.ContainerStatuses[0].RestartCount)
		g.remove()
	}
}
