package devices

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/resourcename"
)

// unknownPods are Pods that may have devices of which a damaged state file does not say any more which they are: their names and
// resources, by their UIDs. It is nil if the file was not damaged.
type unknownPods map[string]unknownPod

type unknownPod struct {
	name      string
	resources map[string]bool
}

// Readmit reports a Pod that an earlier process has admitted. If a damaged state file was set aside, no container gets devices of a resource
// that the Pod has until it has ended: they could be those of its containers.
func (m *Manager) Readmit(pod *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.unknown == nil {
		return
	}
	resources := map[string]bool{}
	for c := range podutil.Containers(&pod.Spec) {
		for name, quantity := range c.Resources.Limits {
			if resourcename.IsExtended(name) && !quantity.IsZero() && !isClaimed(pod, c.Name, name) {
				resources[string(name)] = true
			}
		}
	}
	if len(resources) > 0 {
		m.unknown[string(pod.UID)] = unknownPod{pod.Namespace + "/" + pod.Name, resources}
	}
}

// check returns why no devices of a resource can be given to a container; nil if they can.
func (u unknownPods) check(resource string) error {
	var names []string
	for _, pod := range u {
		if pod.resources[resource] {
			names = append(names, pod.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("the kubelet's record of devices was damaged, and which devices %s these Pods have is not known: %s; delete them first",
		resource, strings.Join(names, ", "))
}
