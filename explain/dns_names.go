package explain

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/internal/suggest"
)

// restrictsEgress reports whether the policy selects the Pod and applies to what it sends.
func restrictsEgress(policy *networkingv1.NetworkPolicy, pod *corev1.Pod) bool {
	selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
	if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
		return false
	}
	for _, kind := range policy.Spec.PolicyTypes {
		if kind == networkingv1.PolicyTypeEgress {
			return true
		}
	}
	return len(policy.Spec.PolicyTypes) == 0 && len(policy.Spec.Egress) > 0
}

// notFound explains why no server has an address for any of the names.
func (r *resolution) notFound(ctx context.Context) *finding {
	found := &finding{state: Waiting, reason: "NameNotFound", heldBy: "you",
		verdict: fmt.Sprintf("does not resolve from pod %s: none of %s exists", r.pod.Name, countText(len(r.triedNames()), "name", "names")),
		remedy:  "correct the name"}
	why := r.missingName(ctx, r.qualified(ctx))
	switch {
	case why != nil && !r.usesCluster():
		found.reason, found.remedy = "NotClusterDNS", "set dnsPolicy ClusterFirst (ClusterFirstWithHostNet for a Pod with hostNetwork)"
		found.verdict = fmt.Sprintf("does not resolve from pod %s: its name servers (%s) are not the cluster's, because its dnsPolicy is %s",
			r.pod.Name, strings.Join(r.servers, ", "), r.policyText())
	case why != nil && why.reason != "":
		found.reason, found.heldBy, found.evidence = why.reason, why.heldBy, why.evidence
		found.verdict = fmt.Sprintf("does not resolve from pod %s: %s", r.pod.Name, why.verdict)
		found.remedy, found.next = why.remedy, why.next
	default:
		r.explainCode(ctx, found)
	}
	return found
}

func (r *resolution) policyText() string {
	if r.pod.Spec.HostNetwork && r.pod.Spec.DNSPolicy == corev1.DNSClusterFirst {
		return "ClusterFirst, which a Pod with hostNetwork does not get"
	}
	return string(r.pod.Spec.DNSPolicy)
}

// usesCluster reports whether the Pod's resolver has a server of the cluster.
func (r *resolution) usesCluster() bool {
	for _, server := range r.servers {
		if r.isClusterServer(server) {
			return true
		}
	}
	return false
}

// qualified is the name as that of a Service, with the Pod's namespace if it has none. A name of two parts may be that of a
// Pod of a Service in the Pod's namespace.
func (r *resolution) qualified(ctx context.Context) string {
	name := strings.TrimSuffix(r.name, ".")
	first, rest, dotted := strings.Cut(name, ".")
	switch {
	case !dotted:
		return first + "." + r.pod.Namespace
	case strings.Contains(rest, "."):
		return name
	}
	if _, err := r.src.Client.CoreV1().Services(r.pod.Namespace).Get(ctx, rest, metav1.GetOptions{}); err == nil {
		return name + "." + r.pod.Namespace + ".svc"
	}
	return name
}

// explainCode explains the failure to resolve a name of the outside by the last response for the name as it is.
func (r *resolution) explainCode(ctx context.Context, found *finding) {
	whole := strings.TrimSuffix(r.name, ".") + "."
	var last *reply
	for _, got := range r.replies {
		if got.err == nil && (got.name == whole || last == nil) {
			last = got
		}
	}
	if last == nil || last.code != dnsmessage.RCodeServerFailure && last.code != dnsmessage.RCodeRefused {
		return
	}
	found.heldBy = "resolver " + last.server
	found.reason, found.remedy = "ResolverFailed", "check the resolver "+last.server
	found.verdict = fmt.Sprintf("does not resolve from pod %s: %s responded %s", r.pod.Name, r.serverText(last.server), codeText(last.code))
	if !r.isClusterServer(last.server) {
		return
	}
	servers, file, err := r.src.Network.Resolvers(ctx)
	switch {
	case err != nil:
		r.addUnseen("the resolvers of the node", err)
	case len(servers) == 0:
		found.reason, found.heldBy, found.remedy = "NoResolver", "you", "name a resolver in "+file+": the cluster's DNS follows changes of that file"
		found.verdict = fmt.Sprintf("does not resolve from pod %s: the cluster's DNS has no resolver for names of the outside, because %s of the node names none",
			r.pod.Name, file)
	default:
		r.queryResolvers(ctx, found, servers, file, whole)
	}
}

// queryResolvers sends the question to the resolvers of the node, from the node, to find out which of them fail.
func (r *resolution) queryResolvers(ctx context.Context, found *finding, servers []string, file, name string) {
	failed := 0
	for _, server := range servers {
		got := r.query(ctx, nil, server, name, typeA)
		r.steps = append(r.steps, Evidence{server + " (" + file + " of the node, from the node)", got.question(), got.outcome()})
		if got.err != nil {
			failed++
		}
	}
	if failed < len(servers) {
		return
	}
	found.reason, found.heldBy = "ResolverUnreachable", names("resolver", servers)
	found.verdict = fmt.Sprintf("does not resolve from pod %s: the cluster's DNS forwards to %s (%s of the node), which %s not respond", r.pod.Name,
		names("resolver", servers), file, map[bool]string{true: "does", false: "do"}[len(servers) == 1])
	found.remedy = "check the network of the node, or correct " + file
}

// serviceName is the parts of a name of the form SERVICE.NAMESPACE[.svc[.cluster.local]], or HOST before that.
type serviceName struct{ host, service, namespace string }

// parseServiceName reads a name as that of a Service. explicit says that it contains "svc", so that it cannot be meant
// otherwise.
func parseServiceName(name string) (parsed serviceName, explicit, ok bool) {
	name = strings.TrimSuffix(strings.TrimSuffix(name, "."), "."+clusterDomain)
	parts := strings.Split(name, ".")
	if last := len(parts) - 1; last >= 2 && parts[last] == "svc" {
		parts, explicit = parts[:last], true
	}
	switch len(parts) {
	case 2:
		return serviceName{service: parts[0], namespace: parts[1]}, explicit, true
	case 3:
		return serviceName{host: parts[0], service: parts[1], namespace: parts[2]}, explicit, explicit
	}
	return serviceName{}, false, false
}

// missingName explains why the cluster has no address for a name of one of its Services. It returns nil if the name is not
// of that form or is one of the outside as well, and a finding without reason if nothing is missing.
func (q *builder) missingName(ctx context.Context, name string) *finding {
	parsed, explicit, ok := parseServiceName(name)
	if !ok {
		return nil
	}
	core := q.src.Client.CoreV1()
	if _, err := core.Namespaces().Get(ctx, parsed.namespace, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		return q.missingNamespace(ctx, parsed, explicit)
	} else if err != nil {
		q.addUnseen("namespace "+parsed.namespace, err)
		return nil
	}
	service, err := core.Services(parsed.namespace).Get(ctx, parsed.service, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return q.missingService(ctx, parsed)
	case err != nil:
		q.addUnseen("service "+parsed.service, err)
		return nil
	}
	explanation, err := explainService(ctx, Source{Client: q.src.Client, Records: q.src.Records, Clock: q.src.Clock}, service.Namespace, service.Name)
	found := &finding{next: "berth explain svc/" + service.Name + " -n " + service.Namespace}
	switch {
	case err != nil:
		q.addUnseen("service "+parsed.service, err)
	case explanation.Stuck():
		found.reason, found.heldBy, found.evidence, found.remedy = explanation.Reason, "service "+service.Name, explanation.Evidence, explanation.Remedy
		found.verdict = fmt.Sprintf("service %s/%s %s", service.Namespace, service.Name, explanation.Verdict)
	case parsed.host != "":
		found.reason, found.heldBy = "NoSuchHost", "you"
		found.verdict = fmt.Sprintf("service %s/%s exists, and none of its Pods has the hostname %s", service.Namespace, service.Name, parsed.host)
		found.remedy = "correct the name, or set hostname and subdomain of the Pod (a StatefulSet does)"
	}
	return found
}

// missingNamespace says that the namespace of a name does not exist. A name of two parts, such as example.com, may be one of
// the outside: then it is nil.
func (q *builder) missingNamespace(ctx context.Context, parsed serviceName, explicit bool) *finding {
	list, err := q.src.Client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		q.addUnseen("namespaces", err)
		return nil
	}
	var all []string
	for i := range list.Items {
		all = append(all, list.Items[i].Name)
	}
	near := suggest.Closest(parsed.namespace, all)
	if near == "" && !explicit {
		return nil
	}
	found := &finding{state: Waiting, reason: "NoSuchNamespace", heldBy: "you", remedy: "correct the name",
		verdict:  fmt.Sprintf("namespace %s does not exist", parsed.namespace),
		evidence: []Evidence{{"Namespace/" + parsed.namespace, "metadata.name", "missing"}}, next: "berth kubectl get namespaces"}
	if near != "" {
		found.verdict += fmt.Sprintf(": did you mean %s.%s?", parsed.service, near)
	}
	return found
}

// missingService says that the Service of a name does not exist, and which one may be meant.
func (q *builder) missingService(ctx context.Context, parsed serviceName) *finding {
	found := &finding{state: Waiting, reason: "NoSuchService", heldBy: "you", remedy: "correct the name, or create the Service",
		verdict:  fmt.Sprintf("service %s does not exist in namespace %s", parsed.service, parsed.namespace),
		evidence: []Evidence{{"Service/" + parsed.service, "metadata.name", "missing in namespace " + parsed.namespace}},
		next:     kubectl(parsed.namespace, "get services", "")}
	list, err := q.src.Client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return found
	}
	var here, elsewhere []string
	for i := range list.Items {
		switch service := &list.Items[i]; {
		case service.Namespace == parsed.namespace:
			here = append(here, service.Name)
		case service.Name == parsed.service:
			elsewhere = append(elsewhere, service.Name+"."+service.Namespace)
		}
	}
	switch near := suggest.Closest(parsed.service, here); {
	case len(elsewhere) > 0:
		found.verdict += ": did you mean " + elsewhere[0] + "?"
	case near != "":
		found.verdict += ": did you mean " + near + "?"
	}
	return found
}
