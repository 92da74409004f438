package kubelet

import (
	"cmp"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/server"
	"github.com/berth-dev/berth/kubelet/status"
	"github.com/berth-dev/berth/kubelet/volume"
	corevolume "github.com/berth-dev/berth/volume"
)

var _ SyncHandler = (*Kubelet)(nil)

// GetPhase is the phase that follows from the statuses of a Pod's containers, init containers among them.
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

// GetPods are the Pods of this node, with the newest status known, and the mirror Pods.
func (k *Kubelet) GetPods() []*corev1.Pod {
	return append(k.newHost().GetPods(), k.mirrors.Mirrors()...)
}

// GetPodByName finds the Pod; of two that have the name while one of them ends, the newer.
func (k *Kubelet) GetPodByName(namespace, name string) (*corev1.Pod, bool) {
	return k.newHost().GetPodByName(namespace, name)
}

// GetPodByFullName finds the Pod of a full name, NAME_NAMESPACE.
func (k *Kubelet) GetPodByFullName(podFullName string) (*corev1.Pod, bool) {
	name, namespace, ok := strings.Cut(podFullName, "_")
	if !ok {
		return nil, false
	}
	return k.GetPodByName(namespace, name)
}

// GetPodDir is the directory of the Pod's state, also if there is none.
func (k *Kubelet) GetPodDir(podUID types.UID) string { return corevolume.PodDir(k.cfg.RootDir, podUID) }

// GetRunningPods are the Pods of which the container runtime runs a container, with what it knows of them.
func (k *Kubelet) GetRunningPods() ([]*corev1.Pod, error) {
	return k.newHost().GetRunningPods(k.face.life)
}

// HandlePodAdditions takes Pods that are new, the oldest first.
func (k *Kubelet) HandlePodAdditions(pods []*corev1.Pod) {
	ordered := slices.Clone(pods)
	slices.SortStableFunc(ordered, func(x, y *corev1.Pod) int {
		return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.UID, y.UID))
	})
	k.handle(config.Add, ordered)
}

// HandlePodUpdates takes Pods whose wanted state has changed.
func (k *Kubelet) HandlePodUpdates(pods []*corev1.Pod) {
	for _, pod := range pods {
		op := config.Update
		if pod.DeletionTimestamp != nil {
			op = config.Delete
		}
		k.HandlePod(config.Change{Op: op, Pod: pod})
	}
}

// HandlePodRemoves takes Pods that nobody wants any more.
func (k *Kubelet) HandlePodRemoves(pods []*corev1.Pod) { k.handle(config.Remove, pods) }

// HandlePodReconcile takes Pods of which only the status has changed.
func (k *Kubelet) HandlePodReconcile(pods []*corev1.Pod) { k.handle(config.Reconcile, pods) }

// HandlePodSyncs makes Pods be looked at now.
func (k *Kubelet) HandlePodSyncs(pods []*corev1.Pod) {
	for _, pod := range pods {
		k.workers.Wake(pod.UID)
	}
}

func (k *Kubelet) handle(op config.Op, pods []*corev1.Pod) {
	for _, pod := range pods {
		k.HandlePod(config.Change{Op: op, Pod: pod})
	}
}

// HandlePodCleanups removes from the disk and the control groups what is left of Pods that nobody wants. It does
// nothing before all sources have spoken and the runtime was listed.
func (k *Kubelet) HandlePodCleanups() error {
	for _, known := range []chan struct{}{k.listed, k.sourced} {
		select {
		case <-known:
		default:
			return nil
		}
	}
	return k.cleanUp(k.face.life)
}

// LatestLoopEntryTime is when a source of Pods was last heard.
func (k *Kubelet) LatestLoopEntryTime() time.Time {
	nanoseconds := k.face.loop.Load()
	if nanoseconds == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// mountedVolume is a volume that is set up.
type mountedVolume string

// GetPath implements volume.Volume.
func (v mountedVolume) GetPath() string { return string(v) }

// ListVolumesForPod are the Pod's volumes that are set up, by their names in the Pod, and whether there are any.
func (k *Kubelet) ListVolumesForPod(podUID types.UID) (map[string]volume.Volume, bool) {
	mounted := k.volumes.Volumes(podUID)
	out := make(map[string]volume.Volume, len(mounted))
	for name, v := range mounted {
		out[name] = mountedVolume(v.Path)
	}
	return out, len(out) > 0
}

// newHost is the node agent as those see it who ask for Pods.
func (k *Kubelet) newHost() *host {
	return &host{
		RuntimeHost: server.NewRuntimeHost(k.runtime), runtime: k.runtime, workers: k.workers,
		statuses: k.mirrors, clock: k.deps.Clock, checkpoints: filepath.Join(k.cfg.RootDir, "checkpoints"),
	}
}

// findPod finds the Pod that a caller names by its full name, and by its UID if that is given.
func (k *Kubelet) findPod(fullName string, uid types.UID) (*corev1.Pod, error) {
	pod, ok := k.GetPodByFullName(fullName)
	if !ok || uid != "" && pod.UID != uid {
		return nil, errors.New("pod " + fullName + " (uid " + string(uid) + ") is not on this node")
	}
	return pod, nil
}
