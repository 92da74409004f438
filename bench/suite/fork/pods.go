package fork

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/bench/testbed"
	"github.com/berth-dev/berth/up/disposable"
	"github.com/berth-dev/berth/up/savedcluster"
)

// podCount Pods run in the cluster that is saved, diskCount of them with a disk.
const podCount, diskCount = 20, 5

// weigh sets the memory and the disk of a cluster.
func weigh(s *harness.Sample, c *disposable.Cluster) error {
	var memory int64
	pids, err := testbed.Descendants(c.PID())
	if err != nil {
		return err
	}
	for _, pid := range append(pids, c.PID()) {
		if used, err := testbed.MemoryOf(pid); err == nil { // else it has ended
			memory += used.Proportional
		}
	}
	s.Set("memory", float64(memory)/(1<<20))
	size, err := sizeOf(c.Dir())
	s.Set("disk", float64(size)/(1<<20))
	return err
}

// sizeOf is what the files in a directory take on the disk.
func sizeOf(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was removed just now
		}
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			size += testbed.Allocated(info)
		}
		return nil
	})
	return size, err
}

func withPods(ctx context.Context, s *harness.Sample) (err error) {
	config, remove, err := configOf(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	origin, err := disposable.Start(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, origin.End(0)) }()
	if err := fill(ctx, origin); err != nil {
		return err
	}
	began := time.Now()
	dir := filepath.Join(config.Root, "own")
	if _, err := origin.Run(ctx, "snapshot", "save", "pods", "--snapshots", dir); err != nil {
		return err
	}
	s.Set("save", time.Since(began).Seconds())
	info, err := savedcluster.New(dir).Get("pods")
	if err != nil {
		return err
	}
	s.Set("standstill", info.Standstill.Seconds())
	size, err := sizeOf(dir)
	if err != nil {
		return err
	}
	s.Set("disk of the saved cluster", float64(size)/(1<<20))
	return forkWithPods(ctx, s, config, dir)
}

// forkWithPods starts a fork of the saved cluster and waits for its Pods.
func forkWithPods(ctx context.Context, s *harness.Sample, config disposable.Config, dir string) (err error) {
	began := time.Now()
	fork, err := disposable.StartFrom(ctx, config, []string{"--from", "pods", "--snapshots", dir})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fork.End(0)) }()
	s.Set("fork until the Node is ready", time.Since(began).Seconds())
	client, _, err := testbed.Client(fork.Kubeconfig())
	if err != nil {
		return err
	}
	// The Pods of the saved cluster are ready in its objects; those that run here have started after the fork.
	if err := waitPods(ctx, client, func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Running != nil &&
			pod.Status.ContainerStatuses[0].State.Running.StartedAt.After(began.Add(-time.Second))
	}); err != nil {
		return err
	}
	s.Set("fork until all Pods are ready", time.Since(began).Seconds())
	return nil
}

// fill makes the Pods and disks and waits until they are ready.
func fill(ctx context.Context, c *disposable.Cluster) error {
	client, _, err := testbed.Client(c.Kubeconfig())
	if err != nil {
		return err
	}
	for i := range podCount {
		name := fmt.Sprintf("pod-%d", i)
		grace := int64(0)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				TerminationGracePeriodSeconds: &grace,
				Containers:                    []corev1.Container{{Name: "main", Image: "berth.local/pause:v1"}},
			},
		}
		if i < diskCount {
			if err := addDisk(ctx, client, pod); err != nil {
				return err
			}
		}
		if _, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create Pod %s: %w", name, err)
		}
	}
	return waitPods(ctx, client, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
}

// addDisk gives the Pod a disk of 64 MiB.
func addDisk(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod) error {
	class := "berth-loop"
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
		},
	}
	if _, err := client.CoreV1().PersistentVolumeClaims("default").Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create claim %s: %w", claim.Name, err)
	}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim.Name},
	}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return nil
}

// waitPods waits until all Pods are as wanted.
func waitPods(ctx context.Context, client kubernetes.Interface, isWanted func(pod *corev1.Pod) bool) error {
	wanted := map[string]bool{}
	source := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "default", fields.Everything())
	_, err := watchtools.UntilWithSync(ctx, source, &corev1.Pod{}, nil, func(event watch.Event) (bool, error) {
		if pod, ok := event.Object.(*corev1.Pod); ok && strings.HasPrefix(pod.Name, "pod-") {
			wanted[pod.Name] = isWanted(pod)
		}
		count := 0
		for _, is := range wanted {
			if is {
				count++
			}
		}
		return count == podCount, nil
	})
	if err != nil {
		return fmt.Errorf("wait for the Pods: %w", err)
	}
	return nil
}
