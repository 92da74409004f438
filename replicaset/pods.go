package replicaset

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/internal/podutil"
)

// byController is the index of objects by the UID of their controller; those without one are under orphansIn.
const byController = "berth.dev/controller"

func orphansIn(namespace string) string { return "orphans/" + namespace }

func indexByController(obj any) ([]string, error) {
	object, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("index by controller: %w", err)
	}
	if ref := metav1.GetControllerOfNoCopy(object); ref != nil {
		return []string{string(ref.UID)}, nil
	}
	return []string{orphansIn(object.GetNamespace())}, nil
}

// listPods returns the Pods that the ReplicaSet controls and those without a controller that its selector matches.
func (r *reconciliation) listPods() ([]*corev1.Pod, error) {
	found, err := r.podsOf(r.rs.UID)
	if err != nil {
		return nil, err
	}
	orphans, err := r.pods.ByIndex(byController, orphansIn(r.rs.Namespace))
	if err != nil {
		return nil, fmt.Errorf("list pods without controller in %q: %w", r.rs.Namespace, err)
	}
	for _, obj := range orphans {
		if pod, ok := obj.(*corev1.Pod); ok && r.selector.Matches(labels.Set(pod.Labels)) {
			found = append(found, pod)
		}
	}
	return found, nil
}

// podsOf returns the Pods that the ReplicaSet with that UID controls.
func (c *Controller) podsOf(uid types.UID) ([]*corev1.Pod, error) {
	objects, err := c.pods.ByIndex(byController, string(uid))
	if err != nil {
		return nil, fmt.Errorf("list pods of replicaset with uid %q: %w", uid, err)
	}
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, obj := range objects {
		if pod, ok := obj.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods, nil
}

// dropSeenCreates removes the names of Pods that the cache shows: their creation is certain.
func (o *setState) dropSeenCreates(found []*corev1.Pod) {
	if len(o.uncertainCreates) == 0 {
		return
	}
	o.uncertainCreates = slices.DeleteFunc(o.uncertainCreates, func(name string) bool {
		return slices.ContainsFunc(found, func(pod *corev1.Pod) bool { return pod.Name == name })
	})
}

// readySince returns since when a Pod is ready, false if it is not.
func readySince(pod *corev1.Pod) (time.Time, bool) {
	if !podutil.IsReady(&pod.Status) {
		return time.Time{}, false
	}
	return podutil.FindCondition(&pod.Status, corev1.PodReady).LastTransitionTime.Time, true
}

// isAvailable reports whether a Pod has been ready for at least that long. A Pod that is ready since an unknown
// time is available only if atLeast is 0.
func isAvailable(pod *corev1.Pod, atLeast time.Duration, now time.Time) bool {
	since, ready := readySince(pod)
	return ready && (atLeast == 0 || (!since.IsZero() && !since.Add(atLeast).After(now)))
}
