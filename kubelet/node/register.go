package node

import (
	"context"
	"encoding/json"
	"fmt"
	goruntime "runtime"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// attachAnnotation delegates attaching this node's volumes to the attach/detach controller.
const attachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// register creates or updates the Node, with retries, until it succeeds or ctx ends.
func (m *Manager) register(ctx context.Context) error {
	for {
		_, err := m.observe(ctx)
		if err == nil {
			err = m.tryRegister(ctx)
		}
		if err == nil {
			m.retry = 0
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		m.deps.Logger.Warn("failed to register node; retrying", "node", m.config.Name, "error", err)
		timer := m.deps.Clock.NewTimer(m.backoff())
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// tryRegister makes one attempt. A new Node is created with its full status, Ready included, so that it never appears
// as not ready.
func (m *Manager) tryRegister(ctx context.Context) error {
	nodes := m.deps.Client.CoreV1().Nodes()
	now := m.deps.Clock.Now()
	desired := m.initial()
	desired.Status = buildStatus(&m.config, &desired.Status, m.observer.observed, now)
	created, err := nodes.Create(ctx, desired, metav1.CreateOptions{})
	if err == nil {
		m.reported = now
		m.noteFeatures(created)
		m.events.recordTransitions(&corev1.NodeStatus{}, &desired.Status)
		m.setNode(created)
		return nil
	}
	// Creating may be forbidden where another component creates the Nodes.
	if !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) {
		return fmt.Errorf("create node %q: %w", m.config.Name, err)
	}
	existing, getErr := nodes.Get(ctx, m.config.Name, metav1.GetOptions{})
	if getErr != nil {
		return fmt.Errorf("create node %q: %w; get it: %w", m.config.Name, err, getErr)
	}
	m.events.recordReboot(existing, m.observer.observed.info.BootID)
	if patch := metadataPatch(existing, desired, m.config.NoAttachDetach); patch != nil {
		existing, err = nodes.Patch(ctx, m.config.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("patch labels of node %q: %w", m.config.Name, err)
		}
	}
	m.setNode(existing)
	m.wake.Notify()
	return nil
}

// initial returns the Node without its status.
func (m *Manager) initial() *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.config.Name,
			Labels: map[string]string{
				corev1.LabelHostname:      m.config.Hostname,
				corev1.LabelOSStable:      goruntime.GOOS,
				corev1.LabelArchStable:    goruntime.GOARCH,
				"beta.kubernetes.io/os":   goruntime.GOOS,
				"beta.kubernetes.io/arch": goruntime.GOARCH,
			},
			Annotations: map[string]string{},
		},
		Spec: corev1.NodeSpec{ProviderID: m.config.ProviderID, Taints: m.config.Taints},
	}
	for key, value := range m.config.Labels {
		node.Labels[key] = value
	}
	if !m.config.NoAttachDetach {
		node.Annotations[attachAnnotation] = "true"
	}
	return node
}

// metadataPatch returns a merge patch that adds this kubelet's labels and annotation to the existing Node; nil if it
// has them.
func metadataPatch(existing, desired *corev1.Node, noAttachDetach bool) []byte {
	labels, annotations := map[string]any{}, map[string]any{}
	for key, value := range desired.Labels {
		if existing.Labels[key] != value {
			labels[key] = value
		}
	}
	for key, value := range desired.Annotations {
		if existing.Annotations[key] != value {
			annotations[key] = value
		}
	}
	if _, has := existing.Annotations[attachAnnotation]; has && noAttachDetach {
		annotations[attachAnnotation] = nil
	}
	if len(labels) == 0 && len(annotations) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": labels, "annotations": annotations}})
	if err != nil {
		return nil // maps of strings always encode
	}
	return patch
}
