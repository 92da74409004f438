package housekeeping

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// orphanRetryMin and orphanRetryMax bound the wait before the cleanup is tried again.
	orphanRetryMin = time.Second
	orphanRetryMax = 5 * time.Minute
)

// runOrphanCleanup removes what is left of Pods that no longer exist, as soon as it is known which Pods do. A cleanup that
// fails, also one of CleanupOrphans, is tried again until one succeeds.
func (m *Manager) runOrphanCleanup(ctx context.Context) {
	for _, ready := range m.deps.Ready {
		select {
		case <-ready:
		case <-ctx.Done():
			return
		}
	}
	_ = m.cleanupOrphans(ctx) // a failure is logged, and wakes the loop below
	delay := orphanRetryMin
	for {
		select {
		case <-m.orphansLeft.C():
		case <-ctx.Done():
			return
		}
		if !wakeup.Sleep(ctx, m.deps.Clock, delay) {
			return
		}
		delay = min(2*delay, orphanRetryMax)
		if m.cleanupOrphans(ctx) == nil {
			delay = orphanRetryMin
		}
	}
}

// CleanupOrphans makes one attempt to remove what is left of Pods that no longer exist. If it fails, Start tries again. It
// does nothing before it is known which Pods exist.
func (m *Manager) CleanupOrphans(ctx context.Context) error {
	for _, ready := range m.deps.Ready {
		select {
		case <-ready:
		default:
			return nil
		}
	}
	return m.cleanupOrphans(ctx)
}

// cleanupOrphans makes one attempt, one at a time. A failure is logged and has another attempt made.
func (m *Manager) cleanupOrphans(ctx context.Context) error {
	m.cleaning.Lock()
	defer m.cleaning.Unlock()
	err := m.removeOrphans(ctx)
	if err != nil && ctx.Err() == nil {
		m.deps.Logger.Warn("failed to clean up after Pods that no longer exist; retrying", "error", err)
		m.orphansLeft.Notify()
	}
	return err
}

// removeOrphans removes allocations, volumes, directories, logs and cgroups of Pods that have no worker.
func (m *Manager) removeOrphans(ctx context.Context) error {
	m.deps.Allocations.Retain(m.deps.Workers.Has)
	errs := []error{m.deps.Volumes.CleanupOrphans(ctx, m.deps.Workers.Has), m.removeOrphanLogs(), m.reconcileLogLinks(ctx)}
	groups, err := m.deps.Cgroups.Pods()
	if err != nil {
		errs = append(errs, fmt.Errorf("list cgroups of Pods: %w", err))
	}
	for _, uid := range groups {
		if m.deps.Workers.Has(uid) {
			continue
		}
		if err := m.deps.Cgroups.RemovePod(ctx, uid); err != nil {
			errs = append(errs, fmt.Errorf("remove cgroup of orphaned Pod %s: %w", uid, err))
		}
	}
	return errors.Join(errs...)
}

// removeOrphanLogs removes the logs of Pods that have no worker: an earlier kubelet may have died before it removed them.
func (m *Manager) removeOrphanLogs() error {
	entries, err := os.ReadDir(m.config.PodLogsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list logs of Pods: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		// Names are NAMESPACE_NAME_UID, and none of the three has an underscore.
		parts := strings.Split(entry.Name(), "_")
		if len(parts) != 3 || !entry.IsDir() || m.deps.Workers.Has(types.UID(parts[2])) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(m.config.PodLogsDir, entry.Name())); err != nil {
			errs = append(errs, fmt.Errorf("remove logs of orphaned Pod %s/%s: %w", parts[0], parts[1], err))
		}
	}
	return errors.Join(errs...)
}
