package kubelet

import (
	"context"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/kuberuntime"
	"github.com/berth-dev/berth/kubelet/logs/rotate"
	"github.com/berth-dev/berth/kubelet/node"
)

// upkeep keeps the disk from filling up: with logs, and with images if that was asked for.
type upkeep struct {
	rotator   *rotate.Rotator
	collector *images.Collector // nil if images stay
}

// Start works until ctx ends.
func (u *upkeep) Start(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return u.rotator.Start(ctx) })
	if u.collector != nil {
		group.Go(func() error { return u.collector.Start(ctx) })
	}
	return group.Wait()
}

// tend makes what keeps the disk from filling up.
func (k *Kubelet) tend() (err error) {
	d := &k.deps
	k.upkeep.rotator, err = rotate.New(rotate.Deps{
		Runtime: k.runtime, Logs: k.openLogs, Clock: d.Clock, Logger: d.Logger.With("room", "logs"),
	}, rotate.Config{
		MaxSize: k.cfg.ContainerLogMaxSize, MaxFiles: k.cfg.ContainerLogMaxFiles,
	})
	if err != nil || k.cfg.ImageGCHigh == 0 && k.cfg.ImageMaxAge == 0 {
		return err
	}
	high, low := k.cfg.ImageGCHigh, k.cfg.ImageGCLow
	if high == 0 {
		high, low = 100, 100 // only age counts
	}
	k.upkeep.collector, err = images.NewCollector(images.CollectorDeps{
		Service: k.runtime, ImagesInUse: k.wantedImages, OnListed: k.ledger.Reconcile, OnRemoved: k.node.ImagesChanged, CountRemoval: k.imageTimes.count, Recorder: d.Recorder,
		Node:  node.Reference(k.cfg.NodeName),
		Clock: d.Clock, Logger: d.Logger.With("room", "images"),
	}, images.CollectorConfig{
		High: high, Low: low, MaxAge: k.cfg.ImageMaxAge,
	})
	return err
}

// openLogs are the log files of the containers that run.
func (k *Kubelet) openLogs() []rotate.Log {
	var open []rotate.Log
	for _, pod := range k.workers.Pods() {
		s, ok := k.statuses.Get(pod.UID)
		if !ok {
			continue
		}
		dir := kuberuntime.PodLogsDir(k.cfg.PodLogsDir, pod.Namespace, pod.Name, pod.UID)
		for _, list := range [][]corev1.ContainerStatus{
			s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses,
		} {
			for i := range list {
				if list[i].State.Running == nil {
					continue
				}
				_, id, _ := strings.Cut(list[i].ContainerID, "://")
				path := filepath.Join(dir, kuberuntime.LogPath(list[i].Name, uint32(list[i].RestartCount)))
				open = append(open, rotate.Log{ContainerID: id, Path: path})
			}
		}
	}
	return open
}

// wantedImages are the images that Pods of this node name.
func (k *Kubelet) wantedImages() []string {
	var names []string
	for _, pod := range k.workers.Pods() {
		for i := range pod.Spec.InitContainers {
			names = append(names, pod.Spec.InitContainers[i].Image)
		}
		for i := range pod.Spec.Containers {
			names = append(names, pod.Spec.Containers[i].Image)
		}
		for i := range pod.Spec.EphemeralContainers {
			names = append(names, pod.Spec.EphemeralContainers[i].Image)
		}
		for i := range pod.Spec.Volumes {
			if image := pod.Spec.Volumes[i].Image; image != nil {
				names = append(names, image.Reference)
			}
		}
	}
	return names
}
