package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/keyed"
	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/kubelet/volumemanager/expand"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/volume"
)

// slowMountInterval is how long the volumes of a Pod may take before an event names those that are missing, and the
// interval in which the event is repeated.
const slowMountInterval = 2*time.Minute + 3*time.Second

// The kinds of operations on volumes.
const (
	opMount   = "mount"
	opRefresh = "refresh"
	opUnmount = "unmount"
	opExpand  = "expand"
)

// volumeKey is the key under which operations on one volume of a Pod exclude each other.
func volumeKey(uid types.UID, name string) keyed.Key {
	return keyed.Key{Object: string(uid) + "/" + name}
}

// podKey is the key of operations on all volumes of a Pod.
func podKey(uid types.UID) keyed.Key { return keyed.Key{Object: string(uid)} }

// Mount sets up all volumes that the Pod's containers use, all at the same time, and returns when they are set up. A
// volume that fails is retried until ctx ends, after a backoff or when something changes that it may have waited for;
// each new failure causes a FailedMount event. If all volumes are set up already, Mount returns at once.
//
// An error means that ctx ended, that Unmount was called (ErrTerminating), that the Pod requires something that is not
// supported (volume.IsUnsupported), or that this node cannot have a volume (volume.IsAttachLimitExceeded). Volumes that
// were set up until then stay set up until Unmount.
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
	if state.isClosing() { // Unmount may have released the objects just before
		m.deps.Objects.Release(pod.UID)
		return fmt.Errorf("mount volumes of pod %s/%s: %w", pod.Namespace, pod.Name, ErrTerminating)
	}
	missing := m.missingVolumes(state)
	if len(missing) == 0 {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, v := range missing {
		group.Go(contain.Func("volumemanager.mount", podutil.Name(pod), func() error { return m.mountVolume(ctx, state, v) }))
	}
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer contain.Recover("volumemanager.Mount", "")
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

// missingVolumes lists the volumes that the Pod uses and that are not set up yet.
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

// warnSlowMounts writes an event after each slowMountInterval in which the Pod has waited for its volumes.
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

// mountVolume retries until the volume is set up.
func (m *Manager) mountVolume(ctx context.Context, state *podState, v *corev1.Volume) error {
	wait := retryWaiter{m: m, state: state}
	defer wait.stop()
	var last error // of the attempt before
	for {
		// Read before the attempt, so that a change during the attempt is not missed.
		changed := state.retry.Changed()
		m.mu.Lock()
		pod := state.pod
		m.mu.Unlock()
		span := m.deps.Timeline.Begin(timeline.PodRef(pod), "kubelet", timeline.StageVolume, v.Name)
		err := m.operations.Do(span.Context(ctx), volumeKey(state.uid, v.Name), opMount, func(ctx context.Context) error {
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
		m.logger.Info("failed to mount volume", "pod", pod.Name, "namespace", pod.Namespace, "uid", pod.UID,
			"volume", v.Name, "error", err)
		reason, step := failureReason(pod, v, err)
		message := fmt.Sprintf("%s failed for volume %q : %v%s", step, v.Name, err, remedy(err))
		if m.reportFailure(state, v.Name, reason, message) {
			m.reportMismatch(state, v.Name, err)
		}
		if volume.IsUnsupported(err) || volume.IsAttachLimitExceeded(err) {
			return fmt.Errorf("mount volume %q: %w", v.Name, err)
		}
		if err := wait.wait(ctx, changed, v.Name, err); err != nil {
			return fmt.Errorf("mount volume %q: %w", v.Name, err)
		}
	}
}

// failureReason returns the reason and the begin of the message of the event about a failed attempt: a block device is
// mapped, not mounted. A claim that is not ready is reported in the same way for both.
func failureReason(pod *corev1.Pod, v *corev1.Volume, err error) (reason, step string) {
	var claim *claimError
	var affinity *affinityError
	_, asDevice := usedAs(pod, v.Name)
	asDevice = asDevice && !errors.As(err, &claim)
	switch ofAffinity := errors.As(err, &affinity); {
	case asDevice && ofAffinity:
		return reasonFailedMap, "MapVolume.NodeAffinity check"
	case asDevice:
		return reasonFailedMap, "MapVolume.MapPodDevice"
	case ofAffinity:
		return reasonFailedMount, "MountVolume.NodeAffinity check"
	}
	return reasonFailedMount, "MountVolume.SetUp"
}

// mountOnce makes one attempt to set up a volume.
func (m *Manager) mountOnce(ctx context.Context, state *podState, v *corev1.Volume) error {
	state.gate.RLock()
	defer state.gate.RUnlock()
	if state.isClosing() {
		return ErrTerminating
	}
	ctx, cancel := state.untilClosing(ctx)
	defer cancel()
	changed := state.retry.Changed()
	m.mu.Lock()
	_, done := state.mounted[v.Name]
	pod := state.pod
	m.mu.Unlock()
	if done {
		return nil
	}
	plugin, request, err := m.buildRequest(ctx, pod, v)
	if err != nil {
		return err
	}
	m.setResolved(state, v.Name, request.Spec)
	expandedTo := expand.InitialSize(request)
	mount, err := m.attachAndSetUp(ctx, plugin, &request)
	if err != nil {
		return err
	}
	relabel, err := m.needsRelabel(request, mount)
	if err != nil {
		return err
	}
	mounted := &mountedVolume{
		Mounted: Mounted{
			Path: mount.Path, ReadOnly: mount.ReadOnly, Block: request.Spec.IsBlock(), SELinuxRelabel: relabel, Spec: request.Spec,
		},
		plugin: plugin, request: request, expandedTo: expandedTo, usage: &lastUsage{}, health: &atomic.Pointer[string]{},
	}
	failed := m.expandVolume(ctx, pod, mounted)
	if failed != nil {
		m.reportFailedExpansion(state, v.Name, failed)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-changed: // SetUp may have read the content from before the change
		m.toRefresh.add(state.uid)
		m.toExpand.add(state.uid)
	default:
	}
	state.mounted[v.Name] = mounted
	if failed != nil || m.needsResync(ctx, mounted) {
		m.toResync.add(state.uid)
	}
	if reportsHealth(mounted) {
		m.toCheck.add(state.uid)
	}
	delete(state.lastEvents, v.Name)
	return nil
}
