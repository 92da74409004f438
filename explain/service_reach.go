package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxCheckedPods bounds the Pods whose sockets an explanation of a Service reads.
	maxCheckedPods = 16
	// probeTimeout bounds one connection or one request to a name server.
	probeTimeout = 2 * time.Second
)

// networkUnseen is what an explanation does not see without a Network.
const networkUnseen = "sockets of the Pods, kube-proxy and DNS: this machine is no node of the cluster"

// checkReach follows the way of a connection where the API shows nothing wrong: the Service's name, kube-proxy, the sockets
// of the Pods. It returns the finding about the first part that does not work, and the given one if all do.
func (q *builder) checkReach(ctx context.Context, f *serviceFacts, found *finding) *finding {
	if q.src.Network == nil {
		q.unseen = append(q.unseen, networkUnseen)
		return found
	}
	if found.reason == "Alias" {
		return cmp.Or(q.checkAlias(ctx, f), found)
	}
	problem := cmp.Or(q.checkSockets(ctx, f, found), q.checkProxy(ctx, f, found), q.checkName(ctx, f, found))
	if problem == nil {
		return found
	}
	problem.evidence = append(problem.evidence, found.evidence...)
	return problem
}

// checkSockets finds a Pod in which no process listens on the port to which the Service leads.
func (q *builder) checkSockets(ctx context.Context, f *serviceFacts, found *finding) *finding {
	pods := f.readyPods()
	for i := range pods[:min(len(pods), maxCheckedPods)] {
		pod := &pods[i]
		sockets, err := q.src.Network.Sockets(ctx, pod)
		if err != nil && !errors.Is(err, ErrOtherMachine) {
			q.addUnseen("sockets of pod "+pod.Name, err)
		}
		for _, port := range f.service.Spec.Ports {
			target := targetPort(pod, port)
			if target == 0 {
				found.evidence = append(found.evidence, Evidence{"Pod/" + pod.Name, "spec.containers[*].ports",
					fmt.Sprintf("lacks %q: port %s does not lead to this Pod", port.TargetPort.StrVal, portName(port))})
				continue
			}
			protocol := cmp.Or(port.Protocol, corev1.ProtocolTCP)
			var problem *finding
			switch {
			case err == nil:
				problem = f.socketProblem(pod, port, protocol, target, sockets)
			case protocol == corev1.ProtocolTCP:
				problem = q.probe(ctx, f, pod, port, target)
			}
			if problem != nil {
				return problem
			}
		}
	}
	return nil
}

// socketProblem says that none of the Pod's sockets accepts what the Service sends to the port.
func (f *serviceFacts) socketProblem(pod *corev1.Pod, port corev1.ServicePort, protocol corev1.Protocol, target int32, sockets []Socket) *finding {
	var loopback *Socket
	for i, socket := range sockets {
		if socket.Protocol != protocol || socket.Port != target {
			continue
		}
		if !socket.Address.IsLoopback() {
			return nil
		}
		loopback = &sockets[i]
	}
	where := fmt.Sprintf("port %s leads to %d/%s of pod %s", portName(port), target, protocol, pod.Name)
	problem := &finding{state: Waiting, heldBy: "pod " + pod.Name, next: f.kubectl("logs", pod.Name),
		evidence: []Evidence{{"Pod/" + pod.Name, "listening sockets", cmp.Or(socketText(sockets), "none")}}}
	if loopback != nil {
		problem.reason = "ListensOnLoopback"
		problem.verdict = fmt.Sprintf("%s, where %s listens on %s only: no other Pod can connect", where,
			cmp.Or(loopback.Process, "a process"), loopback.Address)
		problem.remedy = "let the program listen on all addresses (0.0.0.0 or [::])"
		return problem
	}
	problem.reason = "NothingListens"
	problem.verdict = where + ", and no process listens there"
	if text := socketText(sockets); text != "" {
		problem.verdict += "; the Pod listens on " + text
	}
	problem.remedy = "correct the targetPort of the Service, or the port of the program"
	return problem
}

// socketText lists the sockets; empty if there are none.
func socketText(sockets []Socket) string {
	var list []string
	for _, socket := range sockets {
		text := fmt.Sprintf("%d/%s", socket.Port, socket.Protocol)
		if !socket.Address.IsUnspecified() {
			text = fmt.Sprintf("%s/%s", net.JoinHostPort(socket.Address.String(), strconv.Itoa(int(socket.Port))), socket.Protocol)
		}
		if socket.Process != "" {
			text += " (" + socket.Process + ")"
		}
		if !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// probe connects to a Pod of another machine, as a TCP probe of a kubelet does. Only a refused connection shows that no
// process listens.
func (q *builder) probe(ctx context.Context, f *serviceFacts, pod *corev1.Pod, port corev1.ServicePort, target int32) *finding {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(target)))
	conn, err := q.src.Network.Dial(ctx, nil, "tcp", address)
	if err == nil {
		_ = conn.Close() // nothing was written
		return nil
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		q.addUnseen("whether pod "+pod.Name+" listens on "+address, err)
		return nil
	}
	return &finding{state: Waiting, reason: "NothingListens", heldBy: "pod " + pod.Name, next: f.kubectl("logs", pod.Name),
		verdict:  fmt.Sprintf("port %s leads to %d/TCP of pod %s, which refuses connections: no process listens there", portName(port), target, pod.Name),
		evidence: []Evidence{{"Pod/" + pod.Name, "TCP probe of " + address, err.Error()}},
		remedy:   "correct the targetPort of the Service, or the port of the program"}
}

// checkProxy finds out whether kube-proxy has written the rules of the Service.
func (q *builder) checkProxy(ctx context.Context, f *serviceFacts, found *finding) *finding {
	if f.isHeadless() {
		return nil
	}
	state, err := q.src.Network.Proxy(ctx)
	if err != nil {
		q.addUnseen("kube-proxy", err)
		return nil
	}
	if state.Disabled {
		q.unseen = append(q.unseen, "kube-proxy: the cluster runs none of its own, so another program has to forward connections to "+f.service.Spec.ClusterIP)
		return nil
	}
	problem := &finding{state: Waiting, heldBy: "kube-proxy", next: f.kubectl("get service", f.service.Name)}
	if state.LogFile != "" {
		problem.remedy = "see the log of kube-proxy, " + state.LogFile
	}
	leads := fmt.Sprintf("its address %s may not lead to its Pods", f.service.Spec.ClusterIP)
	behind := q.now.Sub(state.QueuedAt)
	switch {
	case state.Problem != "":
		problem.reason = "ProxyNotRunning"
		problem.verdict = fmt.Sprintf("%s: kube-proxy of this node %s", leads, state.Problem)
		problem.evidence = []Evidence{{"kube-proxy", "process", state.Problem}}
	case state.SyncedAt.Before(state.QueuedAt) && (behind > maxSyncDelay || state.Failures > 0):
		problem.reason = "ProxyNotSynced"
		problem.verdict = fmt.Sprintf("%s: kube-proxy of this node has not written the changes of the last %s", leads, ago(q.now, state.QueuedAt))
		if state.Failures > 0 {
			problem.verdict += fmt.Sprintf(": writing its rules failed %s", timesText(int32(state.Failures)))
		}
		problem.evidence = []Evidence{
			{"kube-proxy", "kubeproxy_sync_proxy_rules_last_timestamp_seconds", timeText(state.SyncedAt)},
			{"kube-proxy", "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", timeText(state.QueuedAt)},
			{"kube-proxy", "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", fmt.Sprint(state.Failures)},
		}
	default:
		found.evidence = append(found.evidence, Evidence{"kube-proxy", "rules written", timeText(state.SyncedAt)})
		return nil
	}
	return problem
}

func timeText(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// dnsEndpoint returns the address of the cluster's DNS behind its Service; empty if it has none.
func (q *builder) dnsEndpoint(ctx context.Context) string {
	list, err := q.src.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + dnsServiceName})
	if err != nil {
		q.addUnseen("the cluster's DNS", err)
		return ""
	}
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			if len(endpoint.Addresses) > 0 && (endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready) {
				return endpoint.Addresses[0]
			}
		}
	}
	q.unseen = append(q.unseen, "the cluster's DNS: Service kube-system/kube-dns has no endpoint")
	return ""
}

// checkName resolves the Service's name.
func (q *builder) checkName(ctx context.Context, f *serviceFacts, found *finding) *finding {
	server := q.dnsEndpoint(ctx)
	if server == "" {
		return nil
	}
	got := q.query(ctx, nil, server, f.name()+".", queryType(f.service))
	evidence := Evidence{"DNS " + server, got.question(), got.outcome()}
	want := f.service.Spec.ClusterIP
	switch {
	case got.err != nil:
		return q.dnsDown(ctx, "its name "+f.name()+" cannot be resolved", evidence)
	case len(got.addresses) == 0, !f.isHeadless() && !slices.Contains(got.addresses, want):
		return &finding{state: Waiting, reason: "NameNotResolved", heldBy: "DNS", evidence: []Evidence{evidence},
			verdict: fmt.Sprintf("its name %s does not resolve to its address: the cluster's DNS %s responded: %s", f.name(), server, got.outcome()),
			next:    f.kubectl("get endpointslices", "-l "+discoveryv1.LabelServiceName+"="+f.service.Name)}
	}
	found.evidence = append(found.evidence, evidence)
	return nil
}

// checkAlias resolves the name to which a Service of type ExternalName refers.
func (q *builder) checkAlias(ctx context.Context, f *serviceFacts) *finding {
	server := q.dnsEndpoint(ctx)
	if server == "" {
		return nil
	}
	got := q.query(ctx, nil, server, f.name()+".", typeA)
	evidence := []Evidence{{f.object(), "spec.externalName", f.service.Spec.ExternalName}, {"DNS " + server, got.question(), got.outcome()}}
	switch {
	case got.err != nil:
		problem := q.dnsDown(ctx, "its name "+f.name()+" cannot be resolved", evidence[1])
		problem.evidence = append(evidence[:1], problem.evidence...)
		return problem
	case len(got.addresses) > 0:
		return nil
	}
	target := f.service.Spec.ExternalName
	problem := &finding{state: Waiting, reason: "ExternalNameNotFound", heldBy: "you", evidence: evidence,
		verdict: fmt.Sprintf("its name %s is an alias of %s, which does not resolve: %s", f.name(), target, got.outcome()),
		remedy:  "correct spec.externalName", next: f.kubectl("edit service", f.service.Name)}
	if why := q.missingName(ctx, target); why != nil {
		problem.verdict = fmt.Sprintf("its name %s is an alias of %s, which does not resolve: %s", f.name(), target, why.verdict)
	}
	return problem
}

// dnsDown says that the cluster's DNS does not respond, and why if the node shows it.
func (q *builder) dnsDown(ctx context.Context, what string, evidence Evidence) *finding {
	problem := &finding{state: Waiting, reason: "DNSNotResponding", heldBy: "DNS", evidence: []Evidence{evidence},
		verdict: fmt.Sprintf("%s: the cluster's DNS does not respond (%s)", what, evidence.Text),
		next:    kubectl(metav1.NamespaceSystem, "get endpointslices", "-l "+discoveryv1.LabelServiceName+"="+dnsServiceName)}
	if q.src.Network == nil {
		return problem
	}
	if why := q.src.Network.DNSProblem(ctx); why != "" {
		problem.verdict = fmt.Sprintf("%s: the cluster's DNS %s", what, why)
	}
	return problem
}
