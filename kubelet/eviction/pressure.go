package eviction

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	schedhelper "k8s.io/component-helpers/scheduling/corev1"

	"github.com/berth-dev/berth/kubelet/lifecycle"
	"github.com/berth-dev/berth/kubelet/qos"
)

// Pressure is the current shortage of the node. It is made before the Manager that sets it and before those that read it. It is
// safe for concurrent use.
type Pressure struct {
	mu         sync.Mutex // guards conditions
	conditions []Condition
}

var _ lifecycle.PodAdmitHandler = (*Pressure)(nil)

// Conditions returns the pressure conditions that the Node has, sorted by type. The caller must not modify them.
func (p *Pressure) Conditions() []Condition {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conditions
}

// set replaces the conditions, and reports whether they have changed.
func (p *Pressure) set(conditions []Condition) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := !slices.Equal(p.conditions, conditions)
	p.conditions = conditions
	return changed
}

// Admit implements lifecycle.PodAdmitHandler. Under pressure the node takes critical Pods alone; if only memory is short, also
// Pods that request resources, and those that tolerate the shortage.
func (p *Pressure) Admit(attributes *lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	conditions, pod := p.Conditions(), attributes.Pod
	admitted := lifecycle.PodAdmitResult{Admit: true}
	if len(conditions) == 0 || qos.IsCritical(pod) {
		return admitted
	}
	if len(conditions) == 1 && conditions[0].Type == corev1.NodeMemoryPressure {
		taint := &corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}
		if qos.Class(pod) != corev1.PodQOSBestEffort || schedhelper.TolerationsTolerateTaint(logr.Discard(), pod.Spec.Tolerations, taint, false) {
			return admitted
		}
	}
	var names []string
	for _, condition := range conditions {
		names = append(names, string(condition.Type))
	}
	return lifecycle.PodAdmitResult{Reason: Reason, Message: fmt.Sprintf("The node had condition: [%s]. ", strings.Join(names, " "))}
}
