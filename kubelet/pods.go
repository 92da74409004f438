package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	podconfig "github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/kubelet/volume"
	corevolume "github.com/berth-dev/berth/volume"
)

var _ SyncHandler = (*Kubelet)(nil)

// GetPhase returns the phase that follows from the statuses of a Pod's containers, init containers among them.
func GetPhase(spec *corev1.PodSpec, info []corev1.ContainerStatus) corev1.PodPhase {
	var init, main []corev1.ContainerStatus
	for i := range info {
		isInit := slices.ContainsFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == info[i].Name })
		if isInit {
			init = append(init, info[i])
		} else {
			main = append(main, info[i])
		}
	}
	return status.Phase(spec, init, main)
}

// GetPods returns the Pods of this node, with the newest status known, and the mirror Pods.
func (k *Kubelet) GetPods() []*corev1.Pod {
	return append(k.parts.Host.GetPods(), k.parts.Mirrors.Mirrors()...)
}

// GetPodByName returns the Pod; the newer one of two while the older one terminates.
func (k *Kubelet) GetPodByName(namespace, name string) (*corev1.Pod, bool) {
	return k.parts.Host.GetPodByName(namespace, name)
}

// GetPodByFullName returns the Pod of a full name, NAME_NAMESPACE.
func (k *Kubelet) GetPodByFullName(podFullName string) (*corev1.Pod, bool) {
	name, namespace, ok := strings.Cut(podFullName, "_")
	if !ok {
		return nil, false
	}
	return k.GetPodByName(namespace, name)
}

// GetPodDir returns the directory of the Pod's state, whether it exists or not.
func (k *Kubelet) GetPodDir(podUID types.UID) string {
	return corevolume.PodDir(k.config.RootDir, podUID)
}

// GetRunningPods returns the Pods of which the container runtime runs a container, with what it knows of them.
func (k *Kubelet) GetRunningPods() ([]*corev1.Pod, error) {
	return k.parts.Host.GetRunningPods(k.ctx)
}

// HandlePodAdditions adds Pods, the oldest first.
func (k *Kubelet) HandlePodAdditions(pods []*corev1.Pod) {
	ordered := slices.Clone(pods)
	slices.SortStableFunc(ordered, func(x, y *corev1.Pod) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.UID, y.UID))
	})
	k.handle(podconfig.Add, ordered)
}

// HandlePodUpdates updates Pods whose spec has changed.
func (k *Kubelet) HandlePodUpdates(pods []*corev1.Pod) {
	for _, pod := range pods {
		op := podconfig.Update
		if pod.DeletionTimestamp != nil {
			op = podconfig.Delete
		}
		k.agent.HandlePod(podconfig.Change{Op: op, Pod: pod})
	}
}

// HandlePodRemoves removes Pods that their source has no more.
func (k *Kubelet) HandlePodRemoves(pods []*corev1.Pod) { k.handle(podconfig.Remove, pods) }

// HandlePodReconcile updates Pods of which only the status has changed.
func (k *Kubelet) HandlePodReconcile(pods []*corev1.Pod) { k.handle(podconfig.Reconcile, pods) }

// HandlePodSyncs syncs Pods now.
func (k *Kubelet) HandlePodSyncs(pods []*corev1.Pod) {
	for _, pod := range pods {
		k.parts.Signals.Wake(pod.UID)
	}
}

func (k *Kubelet) handle(op podconfig.Op, pods []*corev1.Pod) {
	for _, pod := range pods {
		k.agent.HandlePod(podconfig.Change{Op: op, Pod: pod})
	}
}

// HandlePodCleanups removes from the disk and the cgroups what is left of Pods that no longer exist. What fails is tried again
// later, without another call. It does nothing before all sources are ready and the runtime was listed.
func (k *Kubelet) HandlePodCleanups() error { return k.parts.Housekeeping.CleanupOrphans(k.ctx) }

// loopResponseTimeout is how long the loop of the pod workers may take to respond before it counts as hanging.
const loopResponseTimeout = time.Second

// loopTime is when the loop of the pod workers last ran.
type loopTime struct {
	running atomic.Bool
	last    atomic.Int64 // in nanoseconds of the Unix epoch; zero before the first time
}

// LatestLoopEntryTime is when the loop that hands changes of Pods to their workers last ran. The loop sleeps while nothing
// changes, so it is woken here: it is now, unless the loop hangs or does not run. Before Run it is zero.
func (k *Kubelet) LatestLoopEntryTime() time.Time {
	if k.loop.running.Load() {
		ctx, cancel := context.WithTimeout(k.ctx, loopResponseTimeout)
		defer cancel()
		select {
		case <-k.parts.Signals.Ping():
			k.loop.last.Store(k.deps.Clock.Now().UnixNano())
		case <-ctx.Done():
		}
	}
	if nanoseconds := k.loop.last.Load(); nanoseconds != 0 {
		return time.Unix(0, nanoseconds)
	}
	return time.Time{}
}

// mountedVolume is the path of a mounted volume.
type mountedVolume string

// GetPath implements volume.Volume.
func (v mountedVolume) GetPath() string { return string(v) }

// ListVolumesForPod returns the Pod's mounted volumes, by their names in the Pod, and whether there are any.
func (k *Kubelet) ListVolumesForPod(podUID types.UID) (map[string]volume.Volume, bool) {
	mounted := k.parts.Volumes.Volumes(podUID)
	out := make(map[string]volume.Volume, len(mounted))
	for name, v := range mounted {
		out[name] = mountedVolume(v.Path)
	}
	return out, len(out) > 0
}

// findPod returns the Pod of a full name, and of the UID, which may be its mirror Pod's, if that is not empty.
func (k *Kubelet) findPod(fullName string, uid types.UID) (*corev1.Pod, error) {
	pod, ok := k.GetPodByFullName(fullName)
	if !ok || uid != "" && pod.UID != k.parts.Host.ResolvePodUID(uid) {
		return nil, fmt.Errorf("Pod %s (UID %q) not found on this node", fullName, uid)
	}
	return pod, nil
}
