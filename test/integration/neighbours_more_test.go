//go:build integration

package integration

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var moreNeighbours = flag.Bool("more-neighbours", false, "run the bad neighbours, too, that take longer than CI has time for")

// TestMoreBadNeighbours runs further bad neighbours, on a node with a small disk of its own.
func TestMoreBadNeighbours(t *testing.T) {
	if !*moreNeighbours {
		t.Skip("make neighbours runs it")
	}
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.stop()
	// Enough inodes for seconds of a loop that makes files: nothing can evict a Pod sooner than it has been seen.
	unmount := mountSmallDisk(t, filepath.Join(c.dataDir, "kubelet"), "640M", "-N", "1000000")
	c.up("--unsafe-no-fsync", "--pod-max-pids", fmt.Sprint(neighbourPIDs), "--eviction-pressure-transition-period", "3s",
		"--eviction-hard", "nodefs.inodesFree<20%,nodefs.available<20%,imagefs.available<0%,imagefs.inodesFree<0%,memory.available<0%")
	c.apply(podManifest("witness", shell(witness, `"volumeMounts": [{"name": "data", "mountPath": "/data"}]`), `"volumes": [{"name": "data", "emptyDir": {}}]`))
	c.waitPod("name=witness", "ready", isReady)
	n := &neighbourhood{c, t}
	for _, one := range []struct {
		name string
		act  func(*testing.T)
	}{
		{"inodes", n.inodeFiller},
		{"writable layer", n.layerFiller},
		{"descriptors", n.descriptorHog},
		{"inotify", n.inotifyHog},
		{"termination message that fills the disk", n.messageFiller},
		{"huge annotations", n.hugeAnnotations},
		{"events of 1000 Pods", n.manyEvents},
	} {
		if !t.Run(one.name, func(t *testing.T) { n.during(t, one.act) }) {
			break
		}
	}
	c.stop()
	unmount()
	require.Empty(t, c.leftovers())
}

// inodeFiller makes empty files until its node has hardly any inodes left.
func (n *neighbourhood) inodeFiller(t *testing.T) {
	// Inodes that are not written yet count as the Pod's memory.
	resources := `"volumeMounts": [{"name": "fill", "mountPath": "/fill"}], "resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}`
	script := `i=0; while true; do i=$((i+1)); true > /fill/$i || /bin/busybox sleep 1; done`
	n.apply(podManifest("inodes", shell(script, resources), never+`, "volumes": [{"name": "fill", "emptyDir": {}}]`))
	t.Cleanup(func() { n.mustRun("kubectl", "delete", "pod", "inodes", "--grace-period=1") })
	pod := n.ended(t, "inodes")
	require.Equal(t, "Evicted", pod.Status.Reason, "%v", pod.Status.ContainerStatuses)
	require.Contains(t, pod.Status.Message, "The node was low on resource: inodes.")
	n.explains(t, "inodes", "which ran short of inodes")
	n.waitCondition(corev1.NodeDiskPressure, corev1.ConditionFalse)
}

// layerFiller writes to its container's file system beyond its limit.
func (n *neighbourhood) layerFiller(t *testing.T) {
	resources := `"resources": {"limits": {"cpu": "500m", "memory": "64Mi", "ephemeral-storage": "32Mi"}}`
	n.apply(podManifest("layer", shell(`/bin/busybox dd if=/dev/zero of=/x bs=1M count=200; /bin/busybox sleep 1000`, resources), never))
	t.Cleanup(func() { n.mustRun("kubectl", "delete", "pod", "layer", "--grace-period=1") })
	require.Equal(t, "Evicted", n.ended(t, "layer").Status.Reason)
	n.explains(t, "layer", "it exceeded a limit of its own")
}

// descriptorHog opens as many files as it can in as many processes as it may have.
func (n *neighbourhood) descriptorHog(t *testing.T) {
	n.bad(t, "descriptors", `n=0; while [ $n -lt 100 ]; do n=$((n+1)); ( i=10; while eval "exec $i</dev/null" 2>/dev/null; do i=$((i+1)); done; `+
		`/bin/busybox sleep 1000 ) & done; wait`, "", never)
	n.waitPod("name=descriptors", "running", func(pod *corev1.Pod) bool { return pod.Status.Phase != corev1.PodPending })
	n.startsPod(t, "beside-descriptors")
}

// inotifyHog takes all instances of inotify of the user root, who is the kubelet's user and that of containers, too.
func (n *neighbourhood) inotifyHog(t *testing.T) {
	taken := 0
	for ; taken < 10_000; taken++ {
		instance, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			require.ErrorIs(t, err, unix.EMFILE)
			break
		}
		defer func() { _ = unix.Close(instance) }()
	}
	t.Logf("%d instances of inotify are taken", taken)
	n.startsPod(t, "beside-inotify")
}

// messageFiller writes to the file of its termination message until it exceeds its limit of ephemeral storage.
func (n *neighbourhood) messageFiller(t *testing.T) {
	resources := `"resources": {"limits": {"cpu": "500m", "memory": "64Mi", "ephemeral-storage": "16Mi"}}`
	n.apply(podManifest("message", shell(`/bin/busybox dd if=/dev/zero of=/dev/termination-log bs=1M count=64; /bin/busybox sleep 1000`, resources), never))
	t.Cleanup(func() { n.mustRun("kubectl", "delete", "pod", "message", "--grace-period=1") })
	pod := n.ended(t, "message")
	require.Equal(t, "Evicted", pod.Status.Reason)
	n.explains(t, "message", "it exceeded a limit of its own")
	files, err := filepath.Glob(filepath.Join(n.dataDir, "kubelet/pods", string(pod.UID), "containers/main/*"))
	require.NoError(t, err)
	for _, file := range files {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(4096))
	}
}

// hugeAnnotations has Pods whose annotations together exceed the size of a message of the container runtime.
func (n *neighbourhood) hugeAnnotations(t *testing.T) {
	note := strings.Repeat("x", 250<<10)
	n.createPods(t, "huge", 68, func(pod *corev1.Pod) {
		pod.Annotations = map[string]string{"note": note}
		pod.Spec.NodeName, pod.Spec.HostNetwork = homeNode, true
	})
	n.waitPods(t, "huge", 68, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
	n.startsPod(t, "beside-huge")
	require.NotEmpty(t, n.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/stats/summary"))
}

// manyEvents creates 1000 Pods that no node fits, so that each gets events, again and again.
func (n *neighbourhood) manyEvents(t *testing.T) {
	n.createPods(t, "nowhere", 1000, func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{"no": "such-node"} })
	n.waitPods(t, "nowhere", 1000, func(pod *corev1.Pod) bool { return len(pod.Status.Conditions) > 0 })
	n.startsPod(t, "beside-events")
}

// createPods creates Pods with that label, and removes them at the end of the test.
func (n *neighbourhood) createPods(t *testing.T, name string, count int, change func(*corev1.Pod)) {
	t.Helper()
	pods := n.client().CoreV1().Pods("default")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		none := int64(0)
		var err error
		require.NoError(t, n.poll(func(context.Context) bool { // the API server may be too slow for all of them at once
			err = pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &none}, metav1.ListOptions{LabelSelector: "name=" + name})
			return err == nil
		}), "%v", err)
		n.waitPods(t, name, 0, nil)
	})
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for i := range count {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(name, "-", i), Labels: map[string]string{"name": name}}}
		pod.Spec.Containers = []corev1.Container{{Name: "main", Image: shellImage, Command: []string{"/bin/busybox", "sleep", "1000000"}}}
		change(pod)
		group.Go(func() error {
			for {
				_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
				if err == nil || apierrors.IsAlreadyExists(err) {
					return nil
				}
				if !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) && !strings.Contains(err.Error(), "etcdserver: ") || ctx.Err() != nil {
					return err
				}
			}
		})
	}
	require.NoError(t, group.Wait())
}

// waitPods waits until there are so many Pods with that label for which ready holds; nil holds for all.
func (n *neighbourhood) waitPods(t *testing.T, name string, count int, ready func(*corev1.Pod) bool) {
	t.Helper()
	found := 0
	require.NoError(t, n.poll(func(ctx context.Context) bool {
		list, err := n.client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "name=" + name})
		if err != nil {
			return false
		}
		found = 0
		for i := range list.Items {
			if ready == nil || ready(&list.Items[i]) {
				found++
			}
		}
		return found == count
	}), "%d Pods of %d", found, count)
}

// startsPod requires that the node still starts Pods.
func (n *neighbourhood) startsPod(t *testing.T, name string) {
	t.Helper()
	n.apply(podManifest(name, shell("sleep 1000", ""), ""))
	n.waitPod("name="+name, "ready", isReady)
	n.mustRun("kubectl", "delete", "pod", name)
}
