package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/kubelet/network"
	"github.com/berth-dev/berth/timeline"
)

// KindName is the kind of the object of an explanation of a name.
const KindName = "Name"

// resolution is the resolving of one name as a Pod does it.
type resolution struct {
	*builder
	pod  *corev1.Pod
	name string
	// servers, searches and ndots are the Pod's resolver configuration.
	servers, searches []string
	ndots             int
	// clusterServers are the addresses of the cluster's DNS.
	clusterServers []string
	steps          []Evidence
	replies        []*reply
}

// DNS explains how a name resolves in a Pod: it reads the Pod's resolver configuration, sends the questions that the Pod's
// resolver would send, from the Pod's network, and names the part that fails. The object of the explanation is the name.
func DNS(ctx context.Context, src Source, namespace, podName, name string) (*Explanation, error) {
	if src.Network == nil {
		return nil, errors.New("names are resolved from the network of the Pod: run this on the Pod's node, as root")
	}
	pod, err := src.Client.CoreV1().Pods(namespace).Get(ctx, podName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read pod %s/%s: %w", namespace, podName, err)
	}
	q := &builder{src: src, now: src.now(), ref: timeline.Ref{Kind: KindName, Namespace: namespace, Name: name}}
	r := &resolution{builder: q, pod: pod, name: name}
	found := r.readConfig(ctx)
	if found == nil {
		found = r.resolve(ctx)
	}
	found.evidence = append(r.steps, found.evidence...)
	return q.build(found), nil
}

// readConfig reads the Pod's resolver configuration. It returns a finding if the Pod has none, or needs none.
func (r *resolution) readConfig(ctx context.Context) *finding {
	if hosts, err := r.src.Network.ReadFile(ctx, r.pod, "/etc/hosts"); err == nil {
		if addresses := hostsOf(hosts, r.name); len(addresses) > 0 {
			r.steps = append(r.steps, Evidence{"Pod/" + r.pod.Name, "/etc/hosts", r.name + " is " + strings.Join(addresses, ", ")})
			return &finding{state: Ready, reason: "HostsFile",
				verdict: fmt.Sprintf("resolves to %s for pod %s: its /etc/hosts has the name", strings.Join(addresses, ", "), r.pod.Name)}
		}
	}
	content, err := r.src.Network.ReadFile(ctx, r.pod, "/etc/resolv.conf")
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return r.podNotRunning(ctx, err)
	case err != nil: // resolv.conf(5): the local host is the name server
		r.servers, r.ndots = []string{"127.0.0.1"}, 1
		r.steps = append(r.steps, Evidence{"Pod/" + r.pod.Name, "/etc/resolv.conf", "missing: programs use the name server 127.0.0.1"})
	default:
		config := network.ParseResolvConf(content)
		r.servers, r.searches, r.ndots = config.Servers, config.Searches, ndotsOf(config.Options)
		r.steps = append(r.steps, Evidence{"Pod/" + r.pod.Name, "/etc/resolv.conf", fmt.Sprintf("nameserver %s; search %s; ndots %d",
			cmp.Or(strings.Join(r.servers, " "), "(none)"), cmp.Or(strings.Join(r.searches, " "), "(none)"), r.ndots)})
	}
	if len(r.servers) == 0 {
		r.servers = []string{"127.0.0.1"}
	}
	r.clusterServers = r.findClusterServers(ctx)
	return nil
}

// podNotRunning explains why the Pod's network cannot be used.
func (r *resolution) podNotRunning(ctx context.Context, err error) *finding {
	found := &finding{state: Waiting, reason: "PodNotRunning", heldBy: "pod " + r.pod.Name,
		verdict: fmt.Sprintf("cannot be resolved from pod %s: %v", r.pod.Name, err),
		next:    "berth explain pod/" + r.pod.Name + " -n " + r.pod.Namespace}
	explanation, explainErr := Pod(ctx, r.src, r.pod.Namespace, r.pod.Name)
	switch {
	case explainErr == nil && explanation.State != Ready:
		found.verdict = fmt.Sprintf("cannot be resolved from pod %s, which does not run: %s", r.pod.Name, explanation.Verdict)
		found.evidence = explanation.Evidence
	case errors.Is(err, ErrOtherMachine):
		found.reason, found.heldBy = "OtherMachine", "you"
		found.remedy = "run this on node " + r.pod.Spec.NodeName
	}
	return found
}

// ndotsOf returns the number of dots from which on a name is tried as it is first.
func ndotsOf(options []string) int {
	ndots := 1
	for _, option := range options {
		if text, ok := strings.CutPrefix(option, "ndots:"); ok {
			if n, err := strconv.Atoi(text); err == nil && n >= 0 {
				ndots = min(n, 15) // as glibc limits it
			}
		}
	}
	return ndots
}

// hostsOf returns the addresses that a hosts file has for the name.
func hostsOf(content []byte, name string) []string {
	var list []string
	for line := range strings.Lines(string(content)) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) > 1 && slices.ContainsFunc(fields[1:], func(have string) bool { return strings.EqualFold(have, strings.TrimSuffix(name, ".")) }) {
			list = append(list, fields[0])
		}
	}
	return list
}

// findClusterServers returns the addresses of the cluster's DNS: of its Service, and of its endpoints.
func (r *resolution) findClusterServers(ctx context.Context) []string {
	var list []string
	if service, err := r.src.Client.CoreV1().Services(metav1.NamespaceSystem).Get(ctx, dnsServiceName, metav1.GetOptions{}); err == nil {
		list = append(list, service.Spec.ClusterIPs...)
	}
	if endpoint := r.dnsEndpoint(ctx); endpoint != "" {
		list = append(list, endpoint)
	}
	return list
}

func (r *resolution) isClusterServer(server string) bool {
	return slices.Contains(r.clusterServers, server)
}

// serverText names a server and whose it is.
func (r *resolution) serverText(server string) string {
	if r.isClusterServer(server) {
		return server + " (the cluster's DNS)"
	}
	return server + " (a resolver of the outside)"
}

// candidates returns the full names in the order in which the Pod's resolver tries them.
func (r *resolution) candidates() []string {
	if strings.HasSuffix(r.name, ".") {
		return []string{r.name}
	}
	var list []string
	for _, domain := range r.searches {
		if domain == "." {
			domain = ""
		}
		list = append(list, strings.TrimSuffix(r.name+"."+domain, ".")+".")
	}
	whole := r.name + "."
	if strings.Count(r.name, ".") >= r.ndots {
		list = append([]string{whole}, list...)
	} else {
		list = append(list, whole)
	}
	var unique []string
	for _, name := range list {
		if !slices.Contains(unique, name) {
			unique = append(unique, name)
		}
	}
	return unique
}

// resolve tries the names one after the other, and each with the servers one after the other, as a resolver does.
func (r *resolution) resolve(ctx context.Context) *finding {
	for _, name := range r.candidates() {
		if _, err := dnsmessage.NewName(name); err != nil || len(name) > 254 || strings.Contains(name, "..") {
			return &finding{state: Failed, reason: "InvalidName", heldBy: "you", verdict: fmt.Sprintf("%q is no name that DNS can resolve", name)}
		}
		got := r.tryName(ctx, name)
		if got == nil {
			return r.noServer(ctx)
		}
		if len(got.addresses) > 0 {
			return r.resolved(ctx, got)
		}
	}
	return r.notFound(ctx)
}

// tryName sends the questions for the addresses of one name. It returns nil if no server responds.
func (r *resolution) tryName(ctx context.Context, name string) *reply {
	var last *reply
	for _, server := range r.servers {
		a := r.query(ctx, r.pod, server, name, typeA)
		r.record(a)
		if a.err != nil {
			continue
		}
		last = a
		if len(a.addresses) == 0 && a.code == dnsmessage.RCodeSuccess {
			if other := r.query(ctx, r.pod, server, name, typeAAAA); other.err == nil && len(other.addresses) > 0 {
				r.record(other)
				return other
			}
		}
		if a.code == dnsmessage.RCodeSuccess || a.code == dnsmessage.RCodeNameError {
			return a
		}
	}
	return last
}

func (r *resolution) record(got *reply) {
	r.replies = append(r.replies, got)
	r.steps = append(r.steps, Evidence{r.serverText(got.server), got.question(), got.outcome()})
}

// resolved says by which of the names, and by which server, the name resolves.
func (r *resolution) resolved(ctx context.Context, got *reply) *finding {
	found := &finding{state: Ready, reason: "Resolved",
		verdict: fmt.Sprintf("resolves to %s for pod %s, as %s, by %s", strings.Join(got.addresses, ", "), r.pod.Name, got.name, r.serverText(got.server))}
	if r.isClusterServer(got.server) && !got.authoritative {
		if servers, file, err := r.src.Network.Resolvers(ctx); err == nil && len(servers) > 0 {
			found.verdict += fmt.Sprintf(", which forwards to %s (%s)", strings.Join(servers, ", "), file)
		}
	}
	if tried := len(r.triedNames()) - 1; tried > 0 {
		found.verdict += fmt.Sprintf("; %s of the search list came first, because it has fewer than %s (ndots)", countText(tried, "name", "names"),
			countText(r.ndots, "dot", "dots"))
	}
	return found
}

// triedNames are the names for which questions were sent.
func (r *resolution) triedNames() []string {
	var list []string
	for _, got := range r.replies {
		if !slices.Contains(list, got.name) {
			list = append(list, got.name)
		}
	}
	return list
}

// noServer explains why none of the servers responds.
func (r *resolution) noServer(ctx context.Context) *finding {
	last := r.replies[len(r.replies)-1]
	var found *finding
	if r.isClusterServer(last.server) {
		found = r.dnsDown(ctx, "cannot be resolved from pod "+r.pod.Name, Evidence{r.serverText(last.server), last.question(), last.outcome()})
		found.evidence = nil // it is one of the steps
	} else {
		found = &finding{state: Waiting, reason: "ResolverUnreachable", heldBy: "resolver " + last.server,
			verdict: fmt.Sprintf("cannot be resolved from pod %s: %s did not respond (%v)", r.pod.Name, names("name server", r.servers), last.err)}
		if ip := net.ParseIP(last.server); ip != nil && ip.IsLoopback() && !r.pod.Spec.HostNetwork {
			found.verdict = fmt.Sprintf("cannot be resolved from pod %s: its name server %s is the Pod itself, where none runs", r.pod.Name, last.server)
			found.heldBy = "you"
		}
		found.remedy = "use dnsPolicy ClusterFirst, or correct the name servers of " + r.origin()
	}
	found.evidence = append(found.evidence, r.policies(ctx)...)
	return found
}

// origin names where the Pod's name servers come from.
func (r *resolution) origin() string {
	if r.pod.Spec.DNSPolicy == corev1.DNSNone {
		return "the Pod's dnsConfig"
	}
	return "node " + r.pod.Spec.NodeName
}

// policies lists the network policies that restrict what the Pod sends.
func (r *resolution) policies(ctx context.Context) []Evidence {
	list, err := r.src.Client.NetworkingV1().NetworkPolicies(r.pod.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		r.addUnseen("networkpolicies", err)
		return nil
	}
	var evidence []Evidence
	for i := range list.Items {
		if policy := &list.Items[i]; restrictsEgress(policy, r.pod) {
			evidence = append(evidence, Evidence{"NetworkPolicy/" + policy.Name, "spec.podSelector",
				"selects the Pod and restricts what it sends, if the cluster's network enforces policies (that of `berth up` does not)"})
		}
	}
	return evidence
}
