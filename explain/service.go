package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/podutil"
	"github.com/berth-dev/berth/timeline"
)

// clusterDomain is the domain of the names of Services, unless a cluster is configured otherwise.
const clusterDomain = "cluster.local"

// serviceFacts are the input of the verdict on a Service, as the API has them.
type serviceFacts struct {
	now     time.Time
	service *corev1.Service
	slices  []discoveryv1.EndpointSlice
	// pods are those that the selector matches and that have not ended, others the rest of the namespace's.
	pods, others []corev1.Pod
	// elsewhere are the namespaces of Pods that the selector would match.
	elsewhere []string
	nodes     []corev1.Node
	// services are all, read if another may have the same port.
	services []corev1.Service
	// hostPorts are the Pods, of all namespaces, that have ports of their nodes.
	hostPorts []corev1.Pod
	events    []corev1.Event
}

// serviceRules are tried in this order. The first finding counts.
var serviceRules = []func(*serviceFacts) *finding{
	serviceDeleted,
	serviceAlias,
	serviceWithoutSelector,
	serviceSelectsNothing,
	servicePortMissing,
	servicePodsNotReady,
	serviceEndpointsPending,
	serviceLoadBalancer,
	servicePortTaken,
	serviceNoLocalEndpoint,
	serviceReady,
}

func explainService(ctx context.Context, src Source, namespace, name string) (*Explanation, error) {
	began := src.now()
	service, err := src.Client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read service %s/%s: %w", namespace, name, err)
	}
	now := src.now()
	q := &builder{src: src, now: now, ref: timeline.RefOf(KindService, service)} // no component records stages of Services
	f := q.readService(ctx, service)
	found := f.explain()
	switch {
	case found.reason == reasonSelectsNothing:
		q.adoptOwnerOfPods(ctx, found, f)
	case found.reason == reasonPodsNotReady:
		q.adoptServicePod(ctx, found, f)
	case found.state == Ready:
		found = q.checkReach(ctx, f, found)
	}
	explanation := q.build(found)
	explanation.noteSlowAPI(began, now)
	return explanation, nil
}

// explain returns the finding of the first rule that has one; the last rule always has.
func (f *serviceFacts) explain() *finding {
	for _, rule := range serviceRules {
		if found := rule(f); found != nil {
			found.since = cmp.Or(found.since, f.service.CreationTimestamp.Time)
			return found
		}
	}
	return nil
}

// readService reads what the verdict on the Service follows from.
func (q *builder) readService(ctx context.Context, service *corev1.Service) *serviceFacts {
	f := &serviceFacts{now: q.now, service: service}
	core := q.src.Client.CoreV1()
	list, err := q.src.Client.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: service.Name}.String()})
	if err != nil {
		q.addUnseen("endpointslices", err)
	} else {
		f.slices = list.Items
	}
	if len(service.Spec.Selector) > 0 {
		pods, err := core.Pods(service.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			q.addUnseen("pods", err)
		} else {
			f.sortPods(pods.Items)
		}
		if err == nil && len(f.pods) == 0 {
			q.readElsewhere(ctx, f)
		}
	}
	if nodes, err := core.Nodes().List(ctx, metav1.ListOptions{}); err != nil {
		q.addUnseen("nodes", err)
	} else {
		f.nodes = nodes.Items
	}
	if f.hasNodePorts() {
		q.readPortUsers(ctx, f)
	}
	f.events = readEvents(ctx, q.src.Client, service.Namespace, service.UID, q.addUnseen)
	return f
}

// sortPods keeps the Pods that the selector matches apart from the others.
func (f *serviceFacts) sortPods(pods []corev1.Pod) {
	selector := labels.SelectorFromSet(f.service.Spec.Selector)
	for _, pod := range pods {
		switch {
		case podutil.IsTerminal(&pod.Status):
		case selector.Matches(labels.Set(pod.Labels)):
			f.pods = append(f.pods, pod)
		default:
			f.others = append(f.others, pod)
		}
	}
}

// readElsewhere finds the namespaces whose Pods the selector would match.
func (q *builder) readElsewhere(ctx context.Context, f *serviceFacts) {
	pods, err := q.src.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(f.service.Spec.Selector).String()})
	if err != nil {
		return // the verdict is less specific without them
	}
	for i := range pods.Items {
		if namespace := pods.Items[i].Namespace; namespace != f.service.Namespace && !slices.Contains(f.elsewhere, namespace) {
			f.elsewhere = append(f.elsewhere, namespace)
		}
	}
}

// readPortUsers reads what may use a port of the nodes, too.
func (q *builder) readPortUsers(ctx context.Context, f *serviceFacts) {
	services, err := q.src.Client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		q.addUnseen("services", err)
	} else {
		f.services = services.Items
	}
	pods, err := q.src.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		q.addUnseen("pods of all namespaces", err)
		return
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; !podutil.IsTerminal(&pod.Status) && len(hostPortsOf(pod)) > 0 {
			f.hostPorts = append(f.hostPorts, *pod)
		}
	}
}

// hasNodePorts reports whether the Service is reached at ports or addresses of nodes.
func (f *serviceFacts) hasNodePorts() bool {
	return f.service.Spec.Type == corev1.ServiceTypeNodePort || f.service.Spec.Type == corev1.ServiceTypeLoadBalancer
}

func (f *serviceFacts) object() string { return KindService + "/" + f.service.Name }

func (f *serviceFacts) kubectl(verb, rest string) string {
	return kubectl(f.service.Namespace, verb, rest)
}

func (f *serviceFacts) isHeadless() bool { return f.service.Spec.ClusterIP == corev1.ClusterIPNone }

// name is the full name of the Service.
func (f *serviceFacts) name() string {
	return f.service.Name + "." + f.service.Namespace + ".svc." + clusterDomain
}

// endpoints returns the endpoints to which connections go now: those that are ready, or without any, those that are being
// stopped and still serve.
func (f *serviceFacts) endpoints() (all []discoveryv1.Endpoint, terminating bool) {
	var leaving []discoveryv1.Endpoint
	for _, slice := range f.slices {
		for _, endpoint := range slice.Endpoints {
			conditions := endpoint.Conditions
			switch {
			case conditions.Ready == nil || *conditions.Ready:
				all = append(all, endpoint)
			case conditions.Serving != nil && *conditions.Serving && conditions.Terminating != nil && *conditions.Terminating:
				leaving = append(leaving, endpoint)
			}
		}
	}
	if len(all) == 0 && len(leaving) > 0 && !f.isHeadless() {
		return leaving, true
	}
	return all, false
}

// readyPods are the matched Pods to which the Service may lead.
func (f *serviceFacts) readyPods() []corev1.Pod {
	var ready []corev1.Pod
	for _, pod := range f.pods {
		if pod.DeletionTimestamp == nil && (podutil.IsReady(&pod.Status) || f.service.Spec.PublishNotReadyAddresses && pod.Status.PodIP != "") {
			ready = append(ready, pod)
		}
	}
	return ready
}

func serviceDeleted(f *serviceFacts) *finding {
	if f.service.DeletionTimestamp == nil {
		return nil
	}
	found := deletedOwner(f.service, f.object(), f.now)
	found.reason = "Finalizer"
	found.next = f.kubectl("get service", f.service.Name+" -o jsonpath={.metadata.finalizers}")
	return found
}

func serviceWithoutSelector(f *serviceFacts) *finding {
	if len(f.service.Spec.Selector) > 0 {
		return nil
	}
	if endpoints, _ := f.endpoints(); len(endpoints) > 0 {
		return nil
	}
	return &finding{state: Waiting, reason: "NoEndpointsGiven", heldBy: "you",
		verdict: fmt.Sprintf("reaches nothing: it has no selector, and no EndpointSlice with the label %s=%s has an endpoint",
			discoveryv1.LabelServiceName, f.service.Name),
		evidence: []Evidence{{f.object(), "spec.selector", "empty"}},
		remedy:   "give the Service a selector, or create an EndpointSlice for it",
		next:     f.kubectl("get endpointslices", "-l "+discoveryv1.LabelServiceName+"="+f.service.Name)}
}

func serviceEndpointsPending(f *serviceFacts) *finding {
	if len(f.service.Spec.Selector) == 0 {
		return nil
	}
	ready := f.readyPods()
	if endpoints, _ := f.endpoints(); len(endpoints) > 0 || len(ready) == 0 {
		return nil
	}
	return &finding{state: Waiting, reason: "EndpointsPending", heldBy: "endpointslice controller",
		verdict:  fmt.Sprintf("reaches no Pod: %s ready, and its EndpointSlices do not have them yet", countText(len(ready), "Pod is", "Pods are")),
		evidence: []Evidence{{f.object(), "endpointslices", fmt.Sprintf("%d, without endpoints", len(f.slices))}},
		next:     f.kubectl("get endpointslices", "-l "+discoveryv1.LabelServiceName+"="+f.service.Name)}
}

func serviceReady(f *serviceFacts) *finding {
	endpoints, terminating := f.endpoints()
	found := &finding{state: Ready, reason: "Ready"}
	what := fmt.Sprintf("leads to %s", countText(len(endpoints), "endpoint", "endpoints"))
	if len(f.service.Spec.Selector) > 0 {
		what = fmt.Sprintf("leads to %d of %s", len(f.readyPods()), countText(len(f.pods), "Pod", "Pods"))
	}
	if terminating {
		found.reason, what = "Terminating", what+", all of which are being stopped"
	}
	switch {
	case f.isHeadless():
		found.verdict = fmt.Sprintf("%s: it is headless, and its name %s has the addresses of the Pods", what, f.name())
	default:
		found.verdict = fmt.Sprintf("%s at %s (%s)", what, f.service.Spec.ClusterIP, f.name())
	}
	found.evidence = f.describe()
	return found
}

// describe lists how the Service is reached and what may surprise its clients.
func (f *serviceFacts) describe() []Evidence {
	var list []Evidence
	spec := &f.service.Spec
	for _, port := range spec.Ports {
		text := fmt.Sprintf("%d/%s to %s of the Pods", port.Port, port.Protocol, cmp.Or(port.TargetPort.String(), fmt.Sprint(port.Port)))
		if port.NodePort != 0 {
			text += fmt.Sprintf(", and %d of each node", port.NodePort)
		}
		list = append(list, Evidence{f.object(), "spec.ports[" + portName(port) + "]", text})
	}
	for _, ingress := range f.service.Status.LoadBalancer.Ingress {
		list = append(list, Evidence{f.object(), "status.loadBalancer.ingress", cmp.Or(ingress.IP, ingress.Hostname)})
	}
	if spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		text := "ClientIP: the connections of one client go to one Pod"
		if config := spec.SessionAffinityConfig; config != nil && config.ClientIP != nil && config.ClientIP.TimeoutSeconds != nil {
			text += fmt.Sprintf(" until it has had none for %s", time.Duration(*config.ClientIP.TimeoutSeconds)*time.Second)
		}
		list = append(list, Evidence{f.object(), "spec.sessionAffinity", text})
	}
	if spec.PublishNotReadyAddresses {
		list = append(list, Evidence{f.object(), "spec.publishNotReadyAddresses", "true: connections go to Pods that are not ready, too"})
	}
	for i := range f.pods {
		if pod := &f.pods[i]; !podutil.IsReady(&pod.Status) && pod.DeletionTimestamp == nil {
			list = append(list, Evidence{"Pod/" + pod.Name, "status.conditions[Ready]", "not ready: it gets no connections"})
		}
	}
	return list
}

// portName identifies a port of a Service.
func portName(port corev1.ServicePort) string { return cmp.Or(port.Name, fmt.Sprint(port.Port)) }

// countText is "1 Pod", "2 Pods".
func countText(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// labelText is a set of labels as people write it.
func labelText(set map[string]string) string {
	var list []string
	for key, value := range set {
		list = append(list, key+"="+value)
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}
