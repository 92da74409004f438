package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

const (
	opMount   = "mount"
	opRefresh = "refresh"
	opUnmount = "unmount"
	opUnstage = "unstage"
	opExpand  = "expand"
)

// Mount sets up all volumes of the Pod that a container mounts, all at the same time, and returns when they are. A
// volume that fails is tried again until ctx ends, after a pause or when something changes that may cure it; each new
// failure gives a FailedMount event. If all are set up already it returns at once.
//
// An error means that ctx ended, that Unmount was called (ErrTerminating), that the Pod asks for something that is
// not supported (volume.IsUnsupported), or that this node has no room for a volume (volume.IsNoRoom). Volumes that are set up by then stay so until Unmount.
func (m *Manager) Mount(ctx context.Context, pod *corev1.Pod) error {
	select {
	case <-m.ready:
	case <-ctx.Done():
		return fmt.Errorf("mount volumes of pod %s/%s: %w", pod.Namespace, pod.Name, ctx.Err())
	}
	state, err := m.podStateFor(pod)
	if err != nil {
		return fmt.Errorf("mount volumes of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	m.deps.Objects.Acquire(pod)
	if state.isClosing() { // Unmount may have let the objects go just before
		m.deps.Objects.Release(pod.UID)
		return fmt.Errorf("mount volumes of pod %s/%s: %w", pod.Namespace, pod.Name, ErrTerminating)
	}
	missing := m.missingVolumes(state)
	if len(missing) == 0 {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, v := range missing {
		group.Go(func() error { return m.mountVolume(ctx, state, v) })
	}
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.warnSlowMounts(ctx, state, done)
	}()
	err = group.Wait()
	close(done)
	<-ended
	if err == nil {
		return nil
	}
	return fmt.Errorf("unable to attach or mount volumes of pod %s/%s: %s: %w", pod.Namespace, pod.Name,
		formatUnmounted(m.missingVolumes(state)), err)
}

// missingVolumes is the volumes that the Pod wants and does not have yet.
func (m *Manager) missingVolumes(state *podState) []*corev1.Volume {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(usedVolumes(state.pod), func(v *corev1.Volume) bool {
		_, ok := state.mounted[v.Name]
		return ok
	})
}

func formatUnmounted(volumes []*corev1.Volume) string {
	names := make([]string, 0, len(volumes))
	for _, v := range volumes {
		names = append(names, v.Name)
	}
	return "unmounted volumes=[" + strings.Join(names, " ") + "]"
}

// warnSlowMounts writes an event each time that the Pod has waited for its volumes for so long.
func (m *Manager) warnSlowMounts(ctx context.Context, state *podState, done <-chan struct{}) {
	timer := m.clock.NewTimer(slowMountInterval)
	defer timer.Stop()
	for {
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case <-timer.C():
			m.mu.Lock()
			pod := state.pod
			m.mu.Unlock()
			m.deps.Recorder.Event(pod, corev1.EventTypeWarning, reasonFailedMount,
				"Unable to attach or mount volumes: "+formatUnmounted(m.missingVolumes(state))+": timed out waiting for the condition")
			timer.Reset(slowMountInterval)
		}
	}
}

// volumeKey is the key under which operations on a volume exclude each other.
func volumeKey(uid types.UID, name string) keyed.Key {
	return keyed.Key{Object: string(uid) + "/" + name}
}

// mountVolume tries to set one volume up until it is.
func (m *Manager) mountVolume(ctx context.Context, state *podState, v *corev1.Volume) error {
	wait := retryWaiter{m: m, state: state}
	defer wait.stop()
	var last error // of the attempt before
	for {
		// Taken before the attempt: what changes during it is not missed.
		m.mu.Lock()
		changed, pod := state.retryCh, state.pod
		m.mu.Unlock()
		span := m.deps.Timeline.Begin(timeline.PodRef(pod), "kubelet", timeline.StageVolume, v.Name)
		err := m.exec.Do(span.Context(ctx), volumeKey(state.uid, v.Name), opMount, func(ctx context.Context) error {
			return m.mountOnce(ctx, state, v)
		})
		span.End(err)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil && last != nil {
			return fmt.Errorf("mount volume %q: %w; last failure: %w", v.Name, ctx.Err(), last)
		}
		if ctx.Err() != nil || errors.Is(err, ErrTerminating) {
			return fmt.Errorf("mount volume %q: %w", v.Name, err)
		}
		last = err
		m.logger.Info("cannot mount volume", "pod", pod.Name, "namespace", pod.Namespace, "uid", pod.UID,
			"volume", v.Name, "error", err)
		reason, step := failureReason(pod, v, err)
		m.reportFailure(state, v.Name, reason, fmt.Sprintf("%s failed for volume %q : %v%s", step, v.Name, err, remedy(err)))
		if volume.IsUnsupported(err) || volume.IsAttachLimitExceeded(err) {
			return fmt.Errorf("mount volume %q: %w", v.Name, err)
		}
		if err := wait.wait(ctx, changed, v.Name, err); err != nil {
			return fmt.Errorf("mount volume %q: %w", v.Name, err)
		}
	}
}

// failureReason is the reason and the beginning of the event about a failed attempt: a block device is mapped, not mounted.
// That a claim is not ready is told in the same words for both.
func failureReason(pod *corev1.Pod, v *corev1.Volume, err error) (reason, step string) {
	var claim *claimError
	if _, asDevice := usedAs(pod, v.Name); asDevice && !errors.As(err, &claim) {
		return reasonFailedMap, "MapVolume.MapPodDevice"
	}
	return reasonFailedMount, "MountVolume.SetUp"
}

// mountOnce makes one attempt at one volume.
func (m *Manager) mountOnce(ctx context.Context, state *podState, v *corev1.Volume) error {
	state.gate.RLock()
	defer state.gate.RUnlock()
	if state.isClosing() {
		return ErrTerminating
	}
	ctx, cancel := state.untilClosing(ctx)
	defer cancel()
	m.mu.Lock()
	_, done := state.mounted[v.Name]
	pod, before := state.pod, state.retryCh
	m.mu.Unlock()
	if done {
		return nil
	}
	plugin, request, err := m.buildRequest(ctx, pod, v)
	if err != nil {
		return err
	}
	expandedTo := initialExpandedSize(request)
	mount, err := m.attachAndSetUp(ctx, plugin, request)
	if err != nil {
		return err
	}
	mounted := &mountedVolume{
		Mounted: Mounted{
			Path: mount.Path, ReadOnly: mount.ReadOnly, Block: request.Spec.IsBlock(), Spec: request.Spec,
		},
		plugin: plugin, request: request, expandedTo: expandedTo,
	}
	failed := m.expand(ctx, pod, mounted)
	if failed != nil {
		m.reportFailure(state, v.Name, reasonResizeFailed, fmt.Sprintf("NodeExpandVolume failed for volume %q : %v", v.Name, failed))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if state.retryCh != before {
		m.queueRefresh(state.uid) // SetUp may have read what was there before the change
		m.queueExpansion(state.uid)
	}
	state.mounted[v.Name] = mounted
	if failed != nil || m.needsResync(ctx, mounted) {
		m.queueResync(state.uid)
	}
	if _, ok := sizeLimitOf(state.uid, mounted); ok {
		signal(m.measureQueued)
	}
	delete(state.lastEvents, v.Name)
	return nil
}

// buildRequest finds the plugin of a volume and makes its request.
func (m *Manager) buildRequest(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (
	volume.Plugin, volume.Request, error,
) {
	spec, readOnly, err := m.resolve(ctx, pod, v)
	if err != nil {
		return nil, volume.Request{}, err
	}
	plugin, err := m.deps.Plugins.Find(spec)
	if err != nil {
		return nil, volume.Request{}, err
	}
	if err := volume.CheckDirName(spec.DirName()); err != nil {
		return nil, volume.Request{}, err
	}
	node, err := m.node(ctx, spec)
	if err != nil {
		return nil, volume.Request{}, err
	}
	request := volume.Request{
		Pod: pod, Node: node, Spec: spec, ReadOnly: readOnly,
		Dir: m.volumeDir(pod.UID, plugin, spec),
	}
	if security := pod.Spec.SecurityContext; security != nil && security.FSGroup != nil {
		request.FSGroup = security.FSGroup
		request.OnOwnershipProgress = func(files int64) {
			m.deps.Recorder.Event(pod, corev1.EventTypeWarning, reasonOwnershipInProgress, fmt.Sprintf("Giving volume %q to group %d takes "+
				"long, %d files are done; with fsGroupChangePolicy OnRootMismatch a volume that has the group is left alone",
				v.Name, *security.FSGroup, files))
		}
		request.OnOwnershipChanged = func(took time.Duration, err error) {
			m.metrics.record(spec.QualifiedPluginName(plugin.Name()), measuredGroup, false, took, err)
		}
		if security.FSGroupChangePolicy != nil {
			request.FSGroupChangePolicy = *security.FSGroupChangePolicy
		}
	}
	return plugin, request, nil
}

// untilClosing is ctx, ended also when the Pod's volumes are to be unmounted.
func (s *podState) untilClosing(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-s.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel()
		<-ended
	}
}
