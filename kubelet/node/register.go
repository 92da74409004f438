package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	goruntime "runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/wakeup"
)

// taintUninitialized keeps Pods from a Node until its cloud's controller manager has initialised it.
const taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"

// nodeIPAnnotation has the addresses that the user has chosen, for the cloud's controller manager.
const nodeIPAnnotation = "alpha.kubernetes.io/provided-node-ip"

// attachAnnotation delegates attaching this node's volumes to the attach/detach controller.
const attachAnnotation = "volumes.kubernetes.io/controller-managed-attach-detach"

// The old names of the labels of the operating system and the architecture.
const betaOS, betaArch = "beta.kubernetes.io/os", "beta.kubernetes.io/arch"

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
		if !wakeup.Sleep(ctx, m.deps.Clock, m.backoff()) {
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
	m.events.startup.attempted(now)
	created, err := m.create(ctx, desired)
	if err == nil {
		m.events.startup.registered(&desired.Status, m.deps.Clock.Now())
		m.lastWrite.at = now
		m.noteFeatures(created)
		m.events.recordTransitions(&corev1.NodeStatus{}, &desired.Status)
		m.setNode(created)
		return nil
	}
	// Creating may be forbidden where another component creates the Nodes.
	if !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) && !errors.Is(err, errNoRegister) {
		return fmt.Errorf("create node %q: %w", m.config.Name, err)
	}
	existing, getErr := nodes.Get(ctx, m.config.Name, metav1.GetOptions{})
	if getErr != nil {
		return fmt.Errorf("create node %q: %w; get it: %w", m.config.Name, err, getErr)
	}
	m.events.recordReboot(existing, m.observer.observed.info.BootID)
	if patch := m.metadataPatch(existing, desired); patch != nil {
		existing, err = nodes.Patch(ctx, m.config.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("patch labels of node %q: %w", m.config.Name, err)
		}
	}
	select {
	case <-m.registered: // it was deleted, and others have created it again
	default:
		m.observer.observed.resetExtended = m.deps.First()
	}
	m.setNode(existing)
	m.wake.Notify()
	return nil
}

// errNoRegister is the error of a Node that others have to create.
var errNoRegister = errors.New("the kubelet is configured not to register it (registerNode is false)")

// create creates the Node, unless others have to.
func (m *Manager) create(ctx context.Context, desired *corev1.Node) (*corev1.Node, error) {
	if m.config.NoRegister {
		return nil, errNoRegister
	}
	return m.deps.Client.CoreV1().Nodes().Create(ctx, desired, metav1.CreateOptions{})
}

// initial returns the Node without its status.
func (m *Manager) initial() *corev1.Node {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.config.Name,
			Labels: map[string]string{
				corev1.LabelHostname: m.config.Hostname,
				betaOS:               goruntime.GOOS,
				betaArch:             goruntime.GOARCH,
			},
			Annotations: map[string]string{},
		},
		Spec: corev1.NodeSpec{ProviderID: m.config.ProviderID, Taints: m.config.Taints},
	}
	if instance := m.observer.observed.instance; instance != nil {
		node.Spec.ProviderID = cmp.Or(node.Spec.ProviderID, instance.ProviderID)
		maps.Copy(node.Labels, instance.allLabels())
	}
	maps.Copy(node.Labels, m.config.Labels)
	maps.Copy(node.Labels, machineLabels)
	if !m.config.NoAttachDetach {
		node.Annotations[attachAnnotation] = "true"
	}
	if cloud := m.config.Cloud; cloud.External {
		node.Spec.Taints = append(slices.Clone(node.Spec.Taints), corev1.Taint{
			Key: taintUninitialized, Value: "true", Effect: corev1.TaintEffectNoSchedule,
		})
		if len(cloud.NodeIPs) > 0 {
			node.Annotations[nodeIPAnnotation] = joinIPs(cloud.NodeIPs)
		}
	}
	return node
}

func joinIPs(ips []net.IP) string {
	var list []string
	for _, ip := range ips {
		list = append(list, ip.String())
	}
	return strings.Join(list, ",")
}

// metadataPatch returns a merge patch that adds this kubelet's labels, annotations and provider ID to the existing Node; nil if it
// has them.
func (m *Manager) metadataPatch(existing, desired *corev1.Node) []byte {
	labels, annotations := map[string]any{}, map[string]any{}
	for key, value := range desired.Labels {
		if existing.Labels[key] != value && !m.config.leavesLabel(key) {
			labels[key] = value
		}
	}
	for key, value := range desired.Annotations {
		if existing.Annotations[key] != value {
			annotations[key] = value
		}
	}
	for _, key := range []string{attachAnnotation, nodeIPAnnotation} {
		_, has := existing.Annotations[key]
		if _, wanted := desired.Annotations[key]; has && !wanted {
			annotations[key] = nil
		}
	}
	content := map[string]any{}
	if len(labels) > 0 || len(annotations) > 0 {
		content["metadata"] = map[string]any{"labels": labels, "annotations": annotations}
	}
	if existing.Spec.ProviderID == "" && desired.Spec.ProviderID != "" {
		content["spec"] = map[string]any{"providerID": desired.Spec.ProviderID}
	}
	if len(content) == 0 {
		return nil
	}
	patch, err := json.Marshal(content)
	if err != nil {
		return nil // maps of strings always encode
	}
	return patch
}

// placeLabels are the labels that say where a machine is and what it is, and that the configuration may name, too.
var placeLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion, corev1.LabelInstanceTypeStable, corev1.LabelInstanceType, corev1.LabelOSStable, corev1.LabelArchStable,
	betaOS, betaArch,
}

// leavesLabel reports whether a label of an existing Node is left as it is: those of the configuration are for a Node that is created, and
// whoever changes or removes them later does so for good. Whoever creates the Node in the kubelet's place labels it, too.
func (c *Config) leavesLabel(key string) bool {
	if c.NoRegister {
		return true
	}
	_, configured := c.Labels[key]
	return configured && !slices.Contains(placeLabels, key)
}
