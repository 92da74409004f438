package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/internal/suggest"
)

const (
	reasonSelectsNothing = "SelectorMatchesNothing"
	reasonPodsNotReady   = "PodsNotReady"
)

// serviceSelectsNothing names the Pod that comes closest to what the selector requires.
func serviceSelectsNothing(f *serviceFacts) *finding {
	if len(f.service.Spec.Selector) == 0 || len(f.pods) > 0 {
		return nil
	}
	selector := labelText(f.service.Spec.Selector)
	found := &finding{state: Waiting, reason: reasonSelectsNothing, heldBy: "you",
		verdict:  fmt.Sprintf("reaches no Pod: its selector %s matches no Pod of namespace %s", selector, f.service.Namespace),
		evidence: []Evidence{{f.object(), "spec.selector", selector}},
		remedy:   "correct spec.selector of the Service, or the labels in the template of the Pods",
		next:     f.kubectl("get pods", "--show-labels")}
	if len(f.others) > 0 {
		found.verdict = fmt.Sprintf("reaches no Pod: its selector %s matches none of the %s of namespace %s", selector,
			countText(len(f.others), "Pod", "Pods"), f.service.Namespace)
	}
	if pod, difference := f.closestPod(); pod != nil {
		found.verdict += fmt.Sprintf("; pod %s comes closest: %s", pod.Name, difference)
		found.evidence = append(found.evidence, Evidence{"Pod/" + pod.Name, "metadata.labels", labelText(pod.Labels)})
	}
	if len(f.elsewhere) > 0 {
		found.verdict += fmt.Sprintf("; %s has Pods with these labels, and a Service selects Pods of its own namespace only",
			names("namespace", f.elsewhere))
	}
	return found
}

// closestPod returns the Pod whose labels differ least from the selector, and the differences. It returns nil if all Pods
// lack all the labels.
func (f *serviceFacts) closestPod() (*corev1.Pod, string) {
	var best *corev1.Pod
	bestScore := 0
	for i := range f.others {
		pod := &f.others[i]
		score := 0
		for key, want := range f.service.Spec.Selector {
			have, ok := pod.Labels[key]
			switch {
			case ok && have == want:
				score += 100
			case ok && suggest.Closest(have, []string{want}) != "":
				score += 10
			case ok, suggest.Closest(key, keysOf(pod.Labels)) != "":
				score++
			}
		}
		if score > bestScore || score == bestScore && best != nil && pod.Name < best.Name {
			best, bestScore = pod, score
		}
	}
	if best == nil {
		return nil, ""
	}
	return best, f.labelDifference(best)
}

// labelDifference says in which labels the Pod differs from the selector.
func (f *serviceFacts) labelDifference(pod *corev1.Pod) string {
	var list []string
	for _, key := range keysOf(f.service.Spec.Selector) {
		want := f.service.Spec.Selector[key]
		have, ok := pod.Labels[key]
		switch near := suggest.Closest(key, keysOf(pod.Labels)); {
		case ok && have == want:
		case ok:
			list = append(list, fmt.Sprintf("its label %s is %q, not %q", key, have, want))
		case near != "":
			list = append(list, fmt.Sprintf("it has label %s=%s, not %s=%s", near, pod.Labels[near], key, want))
		default:
			list = append(list, fmt.Sprintf("it lacks label %s=%s", key, want))
		}
	}
	return strings.Join(list, ", ")
}

func keysOf(set map[string]string) []string {
	var keys []string
	for key := range set {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// podMaker is an object whose Pods would have the labels of its template.
type podMaker struct {
	kind, name string
	labels     map[string]string
	replicas   int32
	object     metav1.Object
}

// adoptOwnerOfPods explains why there are no Pods by the object that would make them, if there is one.
func (q *builder) adoptOwnerOfPods(ctx context.Context, found *finding, f *serviceFacts) {
	selector := labels.SelectorFromSet(f.service.Spec.Selector)
	for _, maker := range q.podMakers(ctx, f.service.Namespace) {
		if !selector.Matches(labels.Set(maker.labels)) {
			continue
		}
		what := strings.ToLower(maker.kind) + " " + maker.name
		if maker.replicas == 0 {
			found.reason, found.verdict = "ScaledToZero", fmt.Sprintf("reaches no Pod: the Pods of %s match its selector, and it has 0 replicas", what)
			found.evidence = append(found.evidence, Evidence{maker.kind + "/" + maker.name, "spec.replicas", "0"})
			found.remedy, found.next = "", kubectl(f.service.Namespace, "scale "+strings.ToLower(maker.kind), maker.name+" --replicas=1")
			return
		}
		found.reason, found.heldBy, found.remedy = "NoPods", what, ""
		found.verdict = fmt.Sprintf("reaches no Pod: the Pods of %s would match its selector, and none exists", what)
		found.next = kubectl(f.service.Namespace, "describe "+strings.ToLower(maker.kind), maker.name)
		if Words(maker.kind) != nil {
			q.adopt(ctx, found, maker)
		} else if events := readEvents(ctx, q.src.Client, f.service.Namespace, maker.object.GetUID(), q.addUnseen); len(events) > 0 {
			if failed := lastEvent(events, "FailedCreate"); failed != nil {
				found.reason, found.verdict = "FailedCreate", found.verdict+": "+failed.Message
				found.evidence = append(found.evidence, Evidence{maker.kind + "/" + maker.name, "event", failed.Reason + ": " + failed.Message})
			}
		}
		return
	}
}

// adopt copies the cause of the object that makes the Pods.
func (q *builder) adopt(ctx context.Context, found *finding, maker podMaker) {
	explanation, err := Explain(ctx, q.src, maker.kind, maker.object.GetNamespace(), maker.name)
	if err != nil || !explanation.Stuck() {
		return // it has gone or changed meanwhile
	}
	found.reason = explanation.Reason
	found.verdict += fmt.Sprintf(": %s", explanation.Verdict)
	found.evidence = append(found.evidence, explanation.Evidence...)
	found.remedy, found.next = explanation.Remedy, "berth explain "+Words(maker.kind)[0]+"/"+maker.name+" -n "+maker.object.GetNamespace()
}

// podMakers lists the objects of the namespace that make Pods, those that are no part of another first.
func (q *builder) podMakers(ctx context.Context, namespace string) []podMaker {
	var makers []podMaker
	add := func(kind string, object metav1.Object, replicas *int32, template *corev1.PodTemplateSpec) {
		if metav1.GetControllerOf(object) != nil {
			return
		}
		count := int32(1)
		if replicas != nil {
			count = *replicas
		}
		makers = append(makers, podMaker{kind: kind, name: object.GetName(), labels: template.Labels, replicas: count, object: object})
	}
	apps := q.src.Client.AppsV1()
	if list, err := apps.Deployments(namespace).List(ctx, metav1.ListOptions{}); err != nil {
		q.addUnseen("deployments", err)
	} else {
		for i := range list.Items {
			add(KindDeployment, &list.Items[i], list.Items[i].Spec.Replicas, &list.Items[i].Spec.Template)
		}
	}
	if list, err := apps.StatefulSets(namespace).List(ctx, metav1.ListOptions{}); err != nil {
		q.addUnseen("statefulsets", err)
	} else {
		for i := range list.Items {
			add("StatefulSet", &list.Items[i], list.Items[i].Spec.Replicas, &list.Items[i].Spec.Template)
		}
	}
	if list, err := apps.DaemonSets(namespace).List(ctx, metav1.ListOptions{}); err != nil {
		q.addUnseen("daemonsets", err)
	} else {
		for i := range list.Items {
			add("DaemonSet", &list.Items[i], nil, &list.Items[i].Spec.Template)
		}
	}
	if list, err := apps.ReplicaSets(namespace).List(ctx, metav1.ListOptions{}); err != nil {
		q.addUnseen("replicasets", err)
	} else {
		for i := range list.Items {
			add(KindReplicaSet, &list.Items[i], list.Items[i].Spec.Replicas, &list.Items[i].Spec.Template)
		}
	}
	return makers
}

// servicePortMissing finds a named targetPort that is the name of no container port.
func servicePortMissing(f *serviceFacts) *finding {
	if len(f.pods) == 0 {
		return nil
	}
	for _, port := range f.service.Spec.Ports {
		if port.TargetPort.Type != intstr.String {
			continue
		}
		if slices.ContainsFunc(f.pods, func(pod corev1.Pod) bool { return targetPort(&pod, port) != 0 }) {
			continue
		}
		pod := &f.pods[0]
		have := containerPorts(pod)
		found := &finding{state: Waiting, reason: "TargetPortMissing", heldBy: "you",
			verdict: fmt.Sprintf("port %s leads nowhere: its targetPort %q is the name of no container port of pod %s, which has %s",
				portName(port), port.TargetPort.StrVal, pod.Name, cmp.Or(strings.Join(have, ", "), "none")),
			evidence: []Evidence{
				{f.object(), "spec.ports[" + portName(port) + "].targetPort", port.TargetPort.StrVal},
				{"Pod/" + pod.Name, "spec.containers[*].ports", cmp.Or(strings.Join(have, ", "), "none")},
			},
			remedy: "correct the targetPort of the Service, or name the port in the containers' ports",
			next:   f.kubectl("edit service", f.service.Name)}
		return found
	}
	return nil
}

// targetPort returns the port of the Pod to which the port of the Service leads; 0 if the Pod has none of its name.
func targetPort(pod *corev1.Pod, port corev1.ServicePort) int32 {
	if port.TargetPort.Type == intstr.Int {
		return cmp.Or(port.TargetPort.IntVal, port.Port)
	}
	sidecars := slices.DeleteFunc(slices.Clone(pod.Spec.InitContainers), func(c corev1.Container) bool {
		return !podutil.HasSidecar(&pod.Spec, c.Name)
	})
	for _, container := range slices.Concat(pod.Spec.Containers, sidecars) {
		for _, have := range container.Ports {
			if have.Name == port.TargetPort.StrVal && cmp.Or(have.Protocol, corev1.ProtocolTCP) == cmp.Or(port.Protocol, corev1.ProtocolTCP) {
				return have.ContainerPort
			}
		}
	}
	return 0
}

// containerPorts describes the ports that the Pod's containers declare.
func containerPorts(pod *corev1.Pod) []string {
	var list []string
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			text := fmt.Sprintf("%d/%s", port.ContainerPort, cmp.Or(port.Protocol, corev1.ProtocolTCP))
			if port.Name != "" {
				text = port.Name + " (" + text + ")"
			}
			list = append(list, text)
		}
	}
	return list
}

// servicePodsNotReady says that the selector matches Pods, and none of them may get connections.
func servicePodsNotReady(f *serviceFacts) *finding {
	if len(f.pods) == 0 || len(f.readyPods()) > 0 {
		return nil
	}
	if endpoints, _ := f.endpoints(); len(endpoints) > 0 {
		return nil
	}
	return &finding{state: Waiting, reason: reasonPodsNotReady, next: f.kubectl("get pods", "-l "+labelText(f.service.Spec.Selector)),
		verdict:  fmt.Sprintf("reaches no Pod: none of the %s that its selector matches is ready", countText(len(f.pods), "Pod", "Pods")),
		evidence: []Evidence{{f.object(), "spec.selector", labelText(f.service.Spec.Selector)}}}
}

// adoptServicePod copies the cause of the worst of the Pods to the finding.
func (q *builder) adoptServicePod(ctx context.Context, found *finding, f *serviceFacts) {
	worst := q.worstOf(ctx, f.pods)
	if worst == nil {
		return
	}
	found.reason, found.heldBy = worst.Reason, "pod "+worst.Object.Name
	found.verdict += fmt.Sprintf("; pod %s: %s", worst.Object.Name, worst.Verdict)
	found.evidence = append(found.evidence, worst.Evidence...)
	found.remedy = worst.Remedy
	found.next = "berth explain pod/" + worst.Object.Name + " -n " + worst.Object.Namespace
}
