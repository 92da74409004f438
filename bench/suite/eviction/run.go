package eviction

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
)

const (
	// excess is how much is written after the threshold is met, in pieces of chunk.
	excess = 200 << 20
	chunk  = 1 << 20
	// diskSize is the size of the kubelet's file system in the case of the disk.
	diskSize = 1 << 30
	// warmUp is how long a kubelet has run before it is measured: so that its loop is at any point of its period.
	warmUp = 12 * time.Second
)

// resource is what runs short.
type resource struct {
	signal string
	medium corev1.StorageMedium
	// margin is how much is written until the threshold is met. What else happens on the machine until then must not need it.
	margin int64
	// disk is the size of a file system that the kubelet has for itself; none if 0.
	disk int64
	// available returns how many bytes are available, as a kubelet calculates it; dir is the kubelet's directory.
	available func(dir string) (int64, error)
}

func disk() resource {
	return resource{signal: "nodefs.available", margin: 300 << 20, disk: diskSize, available: func(dir string) (int64, error) {
		var fs unix.Statfs_t
		if err := unix.Statfs(dir, &fs); err != nil {
			return 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
		}
		return int64(fs.Bavail) * fs.Bsize, nil
	}}
}

func memory() resource {
	return resource{signal: "memory.available", medium: corev1.StorageMediumMemory, margin: 1 << 30, available: func(string) (int64, error) {
		return testbed.MemoryAvailable()
	}}
}

// threshold returns below which number of available bytes the kubelet evicts.
func (r resource) threshold(dir string) (int64, error) {
	if r.disk != 0 {
		return r.disk * 6 / 10, nil // it is empty but for the file system's own 5 %
	}
	available, err := r.available(dir)
	return available - r.margin, err
}

func run(ctx context.Context, sample *harness.Sample, which testbed.Kubelet, r resource) error {
	cluster, err := testbed.ClusterFromEnv()
	if err != nil {
		return err
	}
	threshold, err := r.threshold(cluster.Dir)
	if err != nil {
		return err
	}
	node, err := testbed.StartTestNode(ctx, which, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "unused"}},
		testbed.NodeConfig{EvictionHard: map[string]string{r.signal: fmt.Sprint(threshold)}, Disk: r.disk})
	if err != nil {
		return err
	}
	err = measure(ctx, sample, node, cluster.KubeletDir(which), r, threshold)
	return errors.Join(err, node.Close())
}

func measure(ctx context.Context, sample *harness.Sample, node *testbed.TestNode, dir string, r resource, threshold int64) error {
	pods := node.Client.CoreV1().Pods(node.Namespace)
	changes, err := pods.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watch Pods: %w", err)
	}
	defer changes.Stop()
	created, err := pods.Create(ctx, pod(node.Cluster, r.medium), metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Pod: %w", err)
	}
	if err := untilRunning(ctx, changes); err != nil {
		return err
	}
	if err := harness.Pause(ctx, warmUp); err != nil {
		return err
	}
	file := filepath.Join(dir, "pods", string(created.UID), "volumes/kubernetes.io~empty-dir/fill/x")
	crossed, err := fill(file, dir, r, threshold)
	if err != nil {
		return err
	}
	ended, err := untilEnded(ctx, changes)
	if err != nil {
		return err
	}
	sample.Set(reaction, harness.Milliseconds(ended.Sub(crossed)))
	// Its volume has to be gone before the next sample.
	if err := pods.Delete(ctx, created.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete Pod: %w", err)
	}
	return untilGone(ctx, changes)
}

// untilGone waits until the Pod is removed, which its kubelet does when its volumes are unmounted.
func untilGone(ctx context.Context, changes watch.Interface) error {
	for {
		select {
		case event, open := <-changes.ResultChan():
			if !open {
				return errors.New("wait for the end of the Pod: the watch ended")
			}
			if event.Type == watch.Deleted {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of the Pod: %w", ctx.Err())
		}
	}
}

// fill writes until the threshold is met, and a bit more; it returns when it was met. The kubelet may remove the file meanwhile.
func fill(path, dir string, r resource, threshold int64) (crossed time.Time, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return crossed, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	block := make([]byte, chunk)
	for left, written := int64(excess), int64(0); left > 0; written += chunk {
		if _, err := file.Write(block); err != nil {
			return crossed, err
		}
		if !crossed.IsZero() {
			left -= chunk
			continue
		}
		available, err := r.available(dir)
		if err != nil {
			return crossed, err
		}
		if available < threshold {
			crossed = time.Now()
		} else if written > 4*r.margin {
			return crossed, fmt.Errorf("%d bytes are available after %d were written, of which %d were to be too many", available, written, r.margin)
		}
	}
	return crossed, nil
}

// untilRunning waits until the Pod runs.
func untilRunning(ctx context.Context, changes watch.Interface) error {
	_, pod, err := until(ctx, changes, "running", func(phase corev1.PodPhase) bool { return phase != corev1.PodPending })
	if err == nil && pod.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("the Pod ended too early: %s: %s", pod.Status.Reason, pod.Status.Message)
	}
	return err
}

// untilEnded waits until the Pod has ended, and returns the time of that. It has failed or succeeded: Kubernetes' kubelet says that an
// evicted Pod has succeeded if its containers ended with exit code 0.
func untilEnded(ctx context.Context, changes watch.Interface) (time.Time, error) {
	ended, _, err := until(ctx, changes, "ended", func(phase corev1.PodPhase) bool {
		return phase == corev1.PodFailed || phase == corev1.PodSucceeded
	})
	return ended, err
}

// until waits until the Pod's phase is one of those asked for; state names them.
func until(ctx context.Context, changes watch.Interface, state string, wanted func(corev1.PodPhase) bool) (time.Time, *corev1.Pod, error) {
	for {
		select {
		case event, open := <-changes.ResultChan():
			now := time.Now()
			if !open {
				return now, nil, fmt.Errorf("wait until the Pod is %s: the watch ended", state)
			}
			if pod, is := event.Object.(*corev1.Pod); is && wanted(pod.Status.Phase) {
				return now, pod, nil
			}
		case <-ctx.Done():
			return time.Time{}, nil, fmt.Errorf("wait until the Pod is %s: %w", state, ctx.Err())
		}
	}
}

// pod is the Pod that is evicted.
func pod(c *testbed.Cluster, medium corev1.StorageMedium) *corev1.Pod {
	var grace int64 = 1
	no := false
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "filler"},
		Spec: corev1.PodSpec{
			NodeName: testbed.NodeName, HostNetwork: true, TerminationGracePeriodSeconds: &grace,
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			Containers: []corev1.Container{{
				Name: "main", Image: c.Image, ImagePullPolicy: corev1.PullNever,
				VolumeMounts: []corev1.VolumeMount{{Name: "fill", MountPath: "/fill"}},
			}},
			Volumes: []corev1.Volume{{Name: "fill", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: medium}}}},
		},
	}
}
