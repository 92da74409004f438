package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	goruntime "runtime"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	statusRequest  = &runtimeapi.StatusRequest{}
	versionRequest = &runtimeapi.VersionRequest{Version: "v1"}
	imagesRequest  = &runtimeapi.ListImagesRequest{}
	noImages       = []*runtimeapi.Image{} // known to be none, as opposed to not known
)

// machineLabels are the labels that say what programs run on the machine. The scheduler relies on them, so a Node always has these values, as
// with upstream's kubelet.
var machineLabels = map[string]string{corev1.LabelOSStable: goruntime.GOOS, corev1.LabelArchStable: goruntime.GOARCH}

// report writes the status if it differs from the Node's, if the machine's labels do, or if it is due for its periodic write. If the write must
// wait, because another client keeps changing them, it returns for how long.
func (m *Manager) report(ctx context.Context, gen int64) (wait time.Duration, err error) {
	if m.lastWrite.unsure {
		if err := m.rereadNode(ctx); err != nil {
			return 0, err
		}
	}
	m.mu.Lock()
	node, deleted := m.node, m.deleted
	m.mu.Unlock()
	if deleted {
		return 0, errNodeDeleted
	}
	now := m.deps.Clock.Now()
	if now.Sub(m.lastWrite.at) >= m.config.ReportInterval {
		m.observer.observed.featuresDropped = false // the API server may be another version now
	}
	status := buildStatus(&m.config, &node.Status, m.observer.observed, now)
	labels := changedLabels(node)
	if sameStatus(&node.Status, &status) && len(labels) == 0 && now.Sub(m.lastWrite.at) < m.config.ReportInterval {
		m.volumes.markWritten(gen)
		m.observer.observed.resetExtended = false
		return 0, nil
	}
	ours := buildStatus(&m.config, &corev1.NodeStatus{}, m.observer.observed, time.Time{})
	if wait := m.conflict.delay(&ours, now); wait > 0 {
		return wait, nil
	}
	patch, err := statusPatch(node, &status, labels)
	if err != nil {
		return 0, err
	}
	updated, err := m.deps.Client.CoreV1().Nodes().Patch(
		ctx, m.config.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		m.lastWrite.unsure = true
		return 0, fmt.Errorf("patch status of node %q: %w", m.config.Name, err)
	}
	m.lastWrite.at = now
	m.observer.observed.resetExtended = false
	m.noteFeatures(updated)
	if m.conflict.record(&ours, now) {
		m.reportConflict(&node.Status, &status)
	}
	m.events.recordTransitions(&node.Status, &status)
	m.events.startup.written(&status, m.deps.Clock.Now())
	m.setNode(updated)
	m.volumes.markWritten(gen)
	return 0, nil
}

// noteFeatures records whether the API server has stored the declared features. One before version 1.35, or with the feature
// turned off, drops them; until the next periodic write the difference then counts as none.
func (m *Manager) noteFeatures(written *corev1.Node) {
	m.observer.observed.featuresDropped = len(m.config.DeclaredFeatures) > 0 && len(written.Status.DeclaredFeatures) == 0
}

// changedLabels returns the machine's labels that the Node has not, or has other values of.
func changedLabels(node *corev1.Node) map[string]string {
	changed := maps.Clone(machineLabels)
	maps.DeleteFunc(changed, func(key, value string) bool { return node.Labels[key] == value })
	return changed
}

// statusPatch returns the strategic merge patch from the Node's status to the new one, which sets labels, too. Addresses are replaced as a
// whole: their merge key is the type, which two addresses may share.
func statusPatch(node *corev1.Node, status *corev1.NodeStatus, labels map[string]string) ([]byte, error) {
	before := corev1.Node{Status: node.Status}
	after := corev1.Node{Status: *status}
	addresses := after.Status.Addresses
	before.Status.Addresses, after.Status.Addresses = nil, nil
	var documents [2][]byte
	for i, document := range []*corev1.Node{&before, &after} {
		data, err := json.Marshal(document)
		if err != nil {
			return nil, fmt.Errorf("encode status of node %q: %w", node.Name, err)
		}
		documents[i] = data
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(documents[0], documents[1], corev1.Node{})
	if err != nil {
		return nil, fmt.Errorf("compute status patch of node %q: %w", node.Name, err)
	}
	var content map[string]any
	if err := json.Unmarshal(patch, &content); err != nil {
		return nil, fmt.Errorf("compute status patch of node %q: %w", node.Name, err)
	}
	inner, ok := content["status"].(map[string]any)
	if !ok {
		inner = make(map[string]any)
		content["status"] = inner
	}
	list := []any{map[string]any{"$patch": "replace"}}
	for _, address := range addresses {
		list = append(list, address)
	}
	inner["addresses"] = list
	if len(labels) > 0 {
		content["metadata"] = map[string]any{"labels": labels}
	}
	return json.Marshal(content)
}

// runtimeReasons returns the runtime's own conditions that are not met, as reasons for not being ready.
func runtimeReasons(response *runtimeapi.StatusResponse) []string {
	var list []string
	for _, kind := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		found := false
		for _, condition := range response.GetStatus().GetConditions() {
			if condition.Type != kind {
				continue
			}
			found = true
			if !condition.Status {
				what := map[string]string{runtimeapi.RuntimeReady: "", runtimeapi.NetworkReady: "network "}[kind]
				list = append(list, fmt.Sprintf("container runtime %snot ready: %s=false reason:%s message:%s",
					what, kind, condition.Reason, condition.Message))
			}
		}
		if !found && response != nil {
			list = append(list, fmt.Sprintf("container runtime does not report %s", kind))
		}
	}
	return list
}
