package pleg

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/kubelet/container"
)

const podUIDLabel = container.PodUIDLabel

// fingerprint is the state of each sandbox and container of one Pod, by runtime id.
type fingerprint map[string]int32

// The states of sandboxes and of containers both start at 0; an offset keeps them apart.
const containerOffset = 100

// Read reads the state of one Pod from the runtime. A Pod that the runtime does not know has an empty status. A Pod has
// one reader: events that report nothing beyond what Read has returned are not passed on.
func (w *Watcher) Read(ctx context.Context, uid types.UID) (*container.PodStatus, error) {
	w.dropUnread(uid)
	labels := map[string]string{podUIDLabel: string(uid)}
	sandboxes, containers, err := w.listAll(ctx, labels)
	if err != nil {
		return nil, fmt.Errorf("read runtime state of pod %s: %w", uid, err)
	}
	var mu sync.Mutex
	var boxes []*runtimeapi.PodSandboxStatus
	var ctrs []*runtimeapi.ContainerStatus
	boxOf := make(map[string]string, len(containers))
	group, ctx := errgroup.WithContext(ctx)
	for _, box := range sandboxes {
		group.Go(contain.Func("pleg.Read", string(uid), func() error {
			resp, err := w.deps.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: box.Id})
			if status.Code(err) == codes.NotFound {
				return nil
			}
			if err != nil {
				return &SandboxError{box.Id, err}
			}
			mu.Lock()
			defer mu.Unlock()
			boxes = append(boxes, resp.Status)
			return nil
		}))
	}
	for _, c := range containers {
		boxOf[c.Id] = c.PodSandboxId
		group.Go(contain.Func("pleg.Read", string(uid), func() error {
			resp, err := w.deps.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: c.Id})
			if status.Code(err) == codes.NotFound {
				return nil
			}
			if err != nil {
				return fmt.Errorf("status of container %s: %w", c.Id, err)
			}
			w.restoreExitCode(ctx, resp.Status)
			mu.Lock()
			defer mu.Unlock()
			ctrs = append(ctrs, resp.Status)
			return nil
		}))
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("read runtime state of pod %s: %w", uid, err)
	}
	print := make(fingerprint, len(boxes)+len(ctrs))
	for _, box := range boxes {
		print[box.Id] = int32(box.State)
	}
	for _, c := range ctrs {
		print[c.Id] = int32(c.State) + containerOffset
	}
	w.storeFingerprint(uid, print)
	out := container.FromCRI(uid, boxes, ctrs)
	for _, c := range out.Containers {
		c.SandboxID = boxOf[c.ID]
	}
	return out, nil
}

// storeFingerprint stores the last known state of a Pod.
func (w *Watcher) storeFingerprint(uid types.UID, print fingerprint) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.markTouched(uid, true)
	if len(print) == 0 {
		delete(w.fingerprints, uid)
		return
	}
	w.fingerprints[uid] = print
}

// listAll lists sandboxes and containers at the same time; labels select those of a Pod.
func (w *Watcher) listAll(ctx context.Context, labels map[string]string) (
	sandboxes []*runtimeapi.PodSandbox, containers []*runtimeapi.Container, err error,
) {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(contain.Func("pleg.listAll", "", func() error {
		resp, err := w.deps.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
			Filter: &runtimeapi.PodSandboxFilter{LabelSelector: labels},
		})
		if err != nil {
			return fmt.Errorf("list sandboxes: %w", err)
		}
		sandboxes = resp.Items
		return nil
	}))
	group.Go(contain.Func("pleg.listAll", "", func() error {
		resp, err := w.deps.Runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{
			Filter: &runtimeapi.ContainerFilter{LabelSelector: labels},
		})
		if err != nil {
			return fmt.Errorf("list containers: %w", err)
		}
		containers = resp.Containers
		return nil
	}))
	err = group.Wait()
	return sandboxes, containers, err
}

// list compares the runtime's sandboxes and containers with the known state, and marks the Pods that differ. With count,
// differences that no event announces until the next list are counted as missed events.
func (w *Watcher) list(ctx context.Context, count bool) error {
	w.mu.Lock()
	w.touched = map[types.UID]bool{}
	w.mu.Unlock()
	began := w.deps.Clock.Now()
	sandboxes, containers, err := w.listAll(ctx, nil)
	if err == nil {
		w.deps.Metrics.Relisted(w.deps.Clock.Since(began))
	}
	if err != nil {
		w.mu.Lock()
		w.touched = nil
		w.mu.Unlock()
		return err
	}
	seen := map[types.UID]fingerprint{}
	record := func(uid, id string, state int32) {
		if uid == "" {
			return // not a kubelet's
		}
		if seen[types.UID(uid)] == nil {
			seen[types.UID(uid)] = fingerprint{}
		}
		seen[types.UID(uid)][id] = state
	}
	for _, box := range sandboxes {
		record(box.GetMetadata().GetUid(), box.Id, int32(box.State))
	}
	for _, c := range containers {
		record(c.Labels[podUIDLabel], c.Id, int32(c.State)+containerOffset)
	}
	uids, active := slices.Collect(maps.Keys(seen)), map[types.UID]bool{}
	for _, c := range containers {
		if uid := types.UID(c.Labels[podUIDLabel]); uid != "" && c.State != runtimeapi.ContainerState_CONTAINER_EXITED {
			active[uid] = true
		}
	}
	for _, uid := range w.diff(seen, count) {
		w.deps.OnPodChanged(uid)
	}
	if w.deps.OnActive != nil {
		w.deps.OnActive(slices.Collect(maps.Keys(active)))
	}
	if w.deps.OnListed != nil {
		w.deps.OnListed(uids)
	}
	return nil
}

// diff stores a new list as the known state (it belongs to the Watcher afterwards), and returns the Pods that differ.
func (w *Watcher) diff(seen map[types.UID]fingerprint, count bool) []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	touched := w.touched
	w.touched = nil
	for uid, read := range touched {
		if print := w.fingerprints[uid]; print != nil {
			seen[uid] = print
		} else if read {
			delete(seen, uid) // a read has shown that nothing exists
		}
	}
	var out []types.UID
	for uid, print := range seen {
		if !maps.Equal(print, w.fingerprints[uid]) {
			out = append(out, uid)
		}
	}
	for uid := range w.fingerprints {
		if seen[uid] == nil {
			out = append(out, uid)
		}
	}
	for uid := range w.unread {
		if _, since := touched[uid]; !since && seen[uid] == nil {
			delete(w.unread, uid) // it has no reader: it is gone, or never was one of ours
		}
	}
	for _, uid := range out {
		w.unread[uid] = append(w.unread[uid], unknownChange)
	}
	w.countMissed(out, seen, count)
	w.fingerprints = seen
	return out
}

// countMissed counts the Pods that the last relist found changed and that no event has been about since, and keeps those of this
// one, which has found seen. Without count it forgets them: a reconnect explains them. The caller holds mu.
func (w *Watcher) countMissed(changed []types.UID, seen map[types.UID]fingerprint, count bool) {
	missed := w.unannounced
	w.unannounced = map[types.UID]map[string]bool{}
	if !count {
		return
	}
	for uid := range missed {
		w.missedEvents.Add(1)
		w.deps.Logger.Warn("relist found a Pod that changed without an event", "uid", uid)
	}
	for _, uid := range changed {
		if _, announced := w.changed[uid]; announced {
			continue
		}
		ids := map[string]bool{}
		for _, print := range []fingerprint{seen[uid], w.fingerprints[uid]} {
			for id := range print {
				ids[id] = true
			}
		}
		w.unannounced[uid] = ids
	}
}

// announce records that an event came about a Pod, or about what it has: that of a removal does not name the Pod.
func (w *Watcher) announce(uid types.UID, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.unannounced, uid)
	if uid == "" {
		maps.DeleteFunc(w.unannounced, func(_ types.UID, ids map[string]bool) bool { return ids[id] })
	}
}

// SandboxError says that the runtime has a sandbox and does not report its state.
type SandboxError struct {
	ID  string
	Err error
}

// Error implements error.
func (e *SandboxError) Error() string { return fmt.Sprintf("status of sandbox %s: %v", e.ID, e.Err) }

// Unwrap returns the runtime's error.
func (e *SandboxError) Unwrap() error { return e.Err }
