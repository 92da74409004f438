package operationexecutor

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/keyed"
)

// VerifyVolumesAreAttached implements OperationExecutor.
func (e *Executor) VerifyVolumesAreAttached(ctx context.Context, volumes map[types.NodeName][]AttachedVolume,
	actual ActualStateOfWorldAttacherUpdater,
) {
	if !e.verifying.CompareAndSwap(false, true) {
		return
	}
	// The empty key conflicts with nothing and has no backoff, so Start always succeeds.
	err := e.ops.Start(ctx, keyed.Key{}, OperationVerify, func(ctx context.Context) error {
		var failed []error
		for node, onNode := range volumes {
			if ctx.Err() != nil {
				break
			}
			failed = append(failed, e.VerifyVolumesAreAttachedPerNode(ctx, onNode, node, actual))
		}
		return errors.Join(failed...)
	}, func(err error) {
		e.verifying.Store(false)
		if err != nil {
			e.logger.Warn("failed to verify all attachments", "error", err)
		}
	})
	if err != nil {
		e.verifying.Store(false)
		e.logger.Warn("failed to start verifying attachments", "error", err)
	}
}

// VerifyVolumesAreAttachedPerNode implements OperationExecutor.
func (e *Executor) VerifyVolumesAreAttachedPerNode(ctx context.Context, volumes []AttachedVolume, node types.NodeName,
	actual ActualStateOfWorldAttacherUpdater,
) error {
	byPlugin := make(map[string][]AttachedVolume)
	for _, attached := range volumes {
		name, _, err := SplitUniqueVolumeName(attached.VolumeName)
		if err != nil {
			return fmt.Errorf("verify volumes of node %q: %w", node, err)
		}
		byPlugin[name] = append(byPlugin[name], attached)
	}
	var failed []error
	for name, group := range byPlugin {
		plugin, err := e.deps.Plugins.FindAttachablePluginByName(name)
		if err != nil {
			failed = append(failed, fmt.Errorf("verify volumes of node %q: %w", node, err))
			continue
		}
		var verdicts map[corev1.UniqueVolumeName]Verdict
		err = e.callPlugin(name, OperationVerify, func() (err error) {
			verdicts, err = plugin.Verify(ctx, group, node)
			return err
		})
		if err != nil { // without a result, nothing is known about the volumes
			failed = append(failed, fmt.Errorf("verify volumes of node %q: %w", node, err))
			continue
		}
		for _, attached := range group {
			verdict, ok := verdicts[attached.VolumeName]
			if !ok || verdict == VerdictAttached {
				continue
			}
			if actual.ApplyVerdict(attached.VolumeName, node, attached.Generation, verdict) {
				e.logger.Warn("volume is not attached as expected", "volume", attached.VolumeName, "node", node,
					"found", verdict.String())
			}
		}
	}
	return errors.Join(failed...)
}
