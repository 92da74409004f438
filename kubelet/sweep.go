package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// sweep ends what is left on the disk and in the control groups of Pods that nobody wants, once it is known which
// Pods are wanted, and which others the runtime still holds.
func (k *Kubelet) sweep(ctx context.Context) error {
	for _, known := range []chan struct{}{k.listed, k.sourced, k.grounded} {
		select {
		case <-known:
		case <-ctx.Done():
			return nil
		}
	}
	if err := k.cleanUp(ctx); err != nil && ctx.Err() == nil {
		k.deps.Logger.Warn("cleaning up after pods that are gone failed", "error", err)
	}
	return nil
}

// cleanUp removes volumes, directories, control groups and logs of Pods that have no worker.
func (k *Kubelet) cleanUp(ctx context.Context) error {
	k.grants.Retain(k.workers.Has)
	errs := []error{k.volumes.CleanupOrphans(ctx, k.workers.Has), k.cleanLogs(), k.settleLinks(ctx)}
	groups, err := k.cgroups.Pods()
	if err != nil {
		errs = append(errs, fmt.Errorf("list control groups of pods: %w", err))
	}
	for _, uid := range groups {
		if k.workers.Has(uid) {
			continue
		}
		if err := k.cgroups.RemovePod(ctx, uid); err != nil {
			errs = append(errs, fmt.Errorf("remove control group of pod %s, which is gone: %w", uid, err))
		}
	}
	return errors.Join(errs...)
}

// cleanLogs removes the logs of Pods that have no worker: whoever removed the rest of the Pod died before it came to them.
func (k *Kubelet) cleanLogs() error {
	entries, err := os.ReadDir(k.cfg.PodLogsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list logs of pods: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		// Names are NAMESPACE_NAME_UID, and none of the three has an underscore.
		parts := strings.Split(entry.Name(), "_")
		if len(parts) != 3 || !entry.IsDir() || k.workers.Has(types.UID(parts[2])) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(k.cfg.PodLogsDir, entry.Name())); err != nil {
			errs = append(errs, fmt.Errorf("remove logs of pod %s/%s, which is gone: %w", parts[0], parts[1], err))
		}
	}
	return errors.Join(errs...)
}
