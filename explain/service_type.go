package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/podutil"
)

// serviceAlias explains a Service of type ExternalName, which is a CNAME record and nothing else.
func serviceAlias(f *serviceFacts) *finding {
	if f.service.Spec.Type != corev1.ServiceTypeExternalName {
		return nil
	}
	target := f.service.Spec.ExternalName
	evidence := []Evidence{{f.object(), "spec.externalName", target}}
	if _, err := netip.ParseAddr(strings.TrimSuffix(target, ".")); err == nil {
		return &finding{state: Failed, reason: "ExternalNameIsAddress", heldBy: "you", evidence: evidence,
			verdict: fmt.Sprintf("its name %s resolves to nothing: spec.externalName %s is an address, and must be a name", f.name(), target),
			remedy:  "use a Service without a selector, and an EndpointSlice with the address", next: f.kubectl("edit service", f.service.Name)}
	}
	return &finding{state: Ready, reason: "Alias", evidence: evidence,
		verdict: fmt.Sprintf("its name %s is an alias of %s; it has no address and no ports of its own", f.name(), target)}
}

// serviceLoadBalancer explains a Service of type LoadBalancer that has no address yet.
func serviceLoadBalancer(f *serviceFacts) *finding {
	if f.service.Spec.Type != corev1.ServiceTypeLoadBalancer || len(f.service.Status.LoadBalancer.Ingress) > 0 {
		return nil
	}
	found := &finding{state: Waiting, reason: "LoadBalancerPending", heldBy: "load balancer controller",
		verdict:  fmt.Sprintf("waiting %s: it has no load balancer's address yet; inside the cluster it works", ago(f.now, f.service.CreationTimestamp.Time)),
		evidence: []Evidence{{f.object(), "status.loadBalancer.ingress", "empty"}},
		remedy:   "start a controller that gives addresses to Services of type LoadBalancer, or use type NodePort",
		next:     f.kubectl("describe service", f.service.Name)}
	if class := ptr.Deref(f.service.Spec.LoadBalancerClass, ""); class != "" {
		found.heldBy = "load balancer controller of class " + class
		found.evidence = append(found.evidence, Evidence{f.object(), "spec.loadBalancerClass", class})
	}
	if asked := f.service.Spec.LoadBalancerIP; asked != "" {
		found.evidence = append(found.evidence, Evidence{f.object(), "spec.loadBalancerIP", asked})
	}
	for _, condition := range f.service.Status.Conditions {
		if condition.Status == "False" || condition.Type == corev1.LoadBalancerPortsError {
			found.verdict += fmt.Sprintf(": %s", cmp.Or(condition.Message, condition.Reason))
			found.evidence = append(found.evidence, Evidence{f.object(), "status.conditions[" + condition.Type + "]", condition.Message})
		}
	}
	for _, event := range slices.Backward(f.events) {
		if event.Type == corev1.EventTypeWarning {
			found.verdict += fmt.Sprintf(": %s", event.Message)
			found.heldBy = cmp.Or(event.Source.Component, event.ReportingController, found.heldBy)
			found.evidence = append(found.evidence, Evidence{f.object(), "event", event.Reason + ": " + event.Message})
			found.remedy = ""
			break
		}
	}
	return found
}

// servicePortTaken finds what takes the connections to a port of the nodes, or to an address of a load balancer.
func servicePortTaken(f *serviceFacts) *finding {
	for _, port := range f.service.Spec.Ports {
		if found := f.takenByPod(port); found != nil {
			return found
		}
	}
	for i := range f.services {
		if found := f.takenByService(&f.services[i]); found != nil {
			return found
		}
	}
	return nil
}

// takenByPod finds a Pod whose hostPort is the node port.
func (f *serviceFacts) takenByPod(port corev1.ServicePort) *finding {
	for i := range f.hostPorts {
		pod := &f.hostPorts[i]
		for _, other := range hostPortsOf(pod) {
			if port.NodePort == 0 || other.HostPort != port.NodePort ||
				cmp.Or(other.Protocol, corev1.ProtocolTCP) != cmp.Or(port.Protocol, corev1.ProtocolTCP) {
				continue
			}
			return &finding{state: Waiting, reason: "PortTaken", heldBy: "pod " + pod.Namespace + "/" + pod.Name,
				verdict: fmt.Sprintf("port %d of node %s is taken: pod %s/%s has it as its hostPort, so connections to node port %d may lead there",
					port.NodePort, pod.Spec.NodeName, pod.Namespace, pod.Name, port.NodePort),
				evidence: []Evidence{
					{f.object(), "spec.ports[" + portName(port) + "].nodePort", fmt.Sprint(port.NodePort)},
					{"Pod/" + pod.Name, "spec.containers[*].ports[*].hostPort", fmt.Sprint(other.HostPort)},
				},
				remedy: "choose another nodePort or another hostPort", next: kubectl(pod.Namespace, "get pod", pod.Name+" -o wide")}
		}
	}
	return nil
}

// takenByService finds a Service with the same address of a load balancer and the same port.
func (f *serviceFacts) takenByService(other *corev1.Service) *finding {
	if other.UID == f.service.UID {
		return nil
	}
	for _, mine := range f.service.Status.LoadBalancer.Ingress {
		for _, theirs := range other.Status.LoadBalancer.Ingress {
			if mine.IP == "" || mine.IP != theirs.IP {
				continue
			}
			for _, port := range f.service.Spec.Ports {
				if !slices.ContainsFunc(other.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == port.Port && p.Protocol == port.Protocol }) {
					continue
				}
				name := other.Namespace + "/" + other.Name
				return &finding{state: Waiting, reason: "PortTaken", heldBy: "service " + name,
					verdict:  fmt.Sprintf("port %d of address %s is taken: service %s has the same address and port", port.Port, mine.IP, name),
					evidence: []Evidence{{KindService + "/" + other.Name, "status.loadBalancer.ingress", theirs.IP}},
					remedy:   "choose another port, or give one of them another address", next: kubectl(other.Namespace, "get service", other.Name)}
			}
		}
	}
	return nil
}

// hostPortsOf returns the ports of its node that the Pod has, without those of a Pod in the node's own network: these are
// sockets on which it listens, and kube-proxy comes before them.
func hostPortsOf(pod *corev1.Pod) []corev1.ContainerPort {
	if pod.Spec.HostNetwork {
		return nil
	}
	var list []corev1.ContainerPort
	for container, kind := range podutil.Containers(&pod.Spec) {
		if kind != podutil.Regular && !podutil.IsSidecar(container, kind) {
			continue
		}
		for _, port := range container.Ports {
			if port.HostPort != 0 {
				list = append(list, port)
			}
		}
	}
	return list
}

// serviceNoLocalEndpoint finds nodes that drop connections because a traffic policy is Local and they have no endpoint.
func serviceNoLocalEndpoint(f *serviceFacts) *finding {
	spec := &f.service.Spec
	inside := ptr.Deref(spec.InternalTrafficPolicy, "") == corev1.ServiceInternalTrafficPolicyLocal && !f.isHeadless()
	outside := spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && f.hasNodePorts()
	endpoints, _ := f.endpoints()
	if !inside && !outside || len(endpoints) == 0 {
		return nil
	}
	without := f.nodesWithout(endpoints)
	if !inside { // a load balancer outside avoids nodes without endpoints; one whose address is a node's cannot
		without = slices.DeleteFunc(without, func(node *corev1.Node) bool { return !f.isIngress(node) })
	}
	if len(without) == 0 {
		return nil
	}
	var list []string
	for _, node := range without {
		list = append(list, node.Name)
	}
	field, who := "spec.externalTrafficPolicy", "connections to the address of"
	if inside {
		field, who = "spec.internalTrafficPolicy", "connections of Pods on"
	}
	return &finding{state: Waiting, reason: "NoLocalEndpoint", heldBy: names("node", list),
		verdict: fmt.Sprintf("%s %s are dropped: %s is Local, and no endpoint is there (%s elsewhere)", who, names("node", list), field,
			countText(len(endpoints), "is", "are")),
		evidence: []Evidence{{f.object(), field, "Local"}, {f.object(), "endpoints", endpointText(endpoints)}},
		remedy:   "run a Pod of the Service on each node (a DaemonSet), or set the policy to Cluster",
		next:     f.kubectl("get pods", "-o wide -l "+labelText(spec.Selector))}
}

// nodesWithout returns the ready nodes that have none of the endpoints.
func (f *serviceFacts) nodesWithout(endpoints []discoveryv1.Endpoint) []*corev1.Node {
	var list []*corev1.Node
	for i := range f.nodes {
		node := &f.nodes[i]
		ready := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if ready && !slices.ContainsFunc(endpoints, func(e discoveryv1.Endpoint) bool { return ptr.Deref(e.NodeName, "") == node.Name }) {
			list = append(list, node)
		}
	}
	return list
}

// isIngress reports whether an address of the Service's load balancer is the node's own.
func (f *serviceFacts) isIngress(node *corev1.Node) bool {
	for _, ingress := range f.service.Status.LoadBalancer.Ingress {
		for _, address := range node.Status.Addresses {
			if ingress.IP != "" && ingress.IP == address.Address {
				return true
			}
		}
	}
	return false
}

// maxNamedEndpoints bounds how many endpoints an explanation names.
const maxNamedEndpoints = 8

func endpointText(endpoints []discoveryv1.Endpoint) string {
	var list []string
	for _, endpoint := range endpoints[:min(len(endpoints), maxNamedEndpoints)] {
		text := strings.Join(endpoint.Addresses, ",")
		if endpoint.NodeName != nil {
			text += " on node " + *endpoint.NodeName
		}
		list = append(list, text)
	}
	if more := len(endpoints) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	return strings.Join(list, ", ")
}

// mayBeStuck reports whether the Service may be stuck, by itself and its EndpointSlices.
func (f *serviceFacts) mayBeStuck() bool {
	endpoints, _ := f.endpoints()
	return f.service.DeletionTimestamp != nil || serviceLoadBalancer(f) != nil ||
		f.service.Spec.Type != corev1.ServiceTypeExternalName && len(f.service.Spec.Selector) > 0 && len(endpoints) == 0
}
