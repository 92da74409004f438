package csinode

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
)

// nodeIDAnnotation contains, as JSON, each driver's name of this node.
const nodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"

// sameDrivers compares two lists regardless of their order.
func sameDrivers(a, b []storagev1.CSINodeDriver) bool {
	sorted := func(list []storagev1.CSINodeDriver) []storagev1.CSINodeDriver {
		return slices.SortedFunc(slices.Values(list), func(x, y storagev1.CSINodeDriver) int {
			return cmp.Compare(x.Name, y.Name)
		})
	}
	return equality.Semantic.DeepEqual(sorted(a), sorted(b))
}

// patchNode writes a driver's name of this node and its topology to the Node. An empty id removes the driver's name;
// topology labels stay, because others may rely on them.
func (m *Manager) patchNode(ctx context.Context, driver, id string, topology map[string]string) error {
	nodes := m.deps.Client.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := nodes.Get(ctx, m.config.NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		patch, err := nodePatch(node, driver, id, topology)
		if err != nil || patch == nil {
			return err
		}
		_, err = nodes.Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("write CSI driver %q to node %q: %w", driver, m.config.NodeName, err)
	}
	return nil
}

// nodePatch returns the patch of patchNode, nil if the Node is up to date.
func nodePatch(node *corev1.Node, driver, id string, topology map[string]string) ([]byte, error) {
	ids := map[string]string{}
	if raw := node.Annotations[nodeIDAnnotation]; raw != "" {
		if err := json.Unmarshal([]byte(raw), &ids); err != nil {
			return nil, fmt.Errorf("read annotation %s: %w", nodeIDAnnotation, err)
		}
	}
	if ids == nil { // by the text null
		ids = map[string]string{}
	}
	labels := map[string]string{}
	for key, value := range topology {
		have, ok := node.Labels[key]
		if ok && have != value {
			return nil, fmt.Errorf("label %s is %q, but the driver reports %q: remove the label if the driver is right",
				key, have, value)
		}
		if !ok {
			labels[key] = value
		}
	}
	if ids[driver] == id && len(labels) == 0 {
		return nil, nil
	}
	if id == "" {
		delete(ids, driver)
	} else {
		ids[driver] = id
	}
	metadata := map[string]any{"resourceVersion": node.ResourceVersion}
	if len(labels) > 0 {
		metadata["labels"] = labels
	}
	var annotation any
	if len(ids) > 0 {
		raw, err := json.Marshal(ids)
		if err != nil {
			return nil, fmt.Errorf("encode annotation %s: %w", nodeIDAnnotation, err)
		}
		annotation = string(raw)
	}
	metadata["annotations"] = map[string]any{nodeIDAnnotation: annotation}
	return json.Marshal(map[string]any{"metadata": metadata})
}
