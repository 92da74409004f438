package explain_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/explain"
)

const clusterResolvConf = "search default.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.1.0.1\noptions ndots:5\n"

// explainName resolves a name as a Pod of namespace default does.
func explainName(t *testing.T, name string, n *network, objects ...runtime.Object) *explain.Explanation {
	t.Helper()
	namespace := func(name string) runtime.Object { return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	objects = append(append(objects, clusterDNS()...), namespace("default"), namespace("shop"))
	src := source(fake.NewClientset(objects...), nil)
	src.Network = n
	explanation, err := explain.DNS(t.Context(), src, "default", "a", name)
	require.NoError(t, err)
	return explanation
}

func TestNames(t *testing.T) {
	peers := service(func(s *corev1.Service) { s.Name, s.UID, s.Spec.ClusterIP = "peers", "peers", corev1.ClusterIPNone })
	objects := []runtime.Object{backend("a", true, nil), service(nil), endpointSlice("web", "10.1.0.5", "n1"), peers,
		endpointSlice("peers", "10.1.0.5", "n1"), service(func(s *corev1.Service) { s.Namespace, s.Name = "shop", "db" })}
	names := map[string][]string{
		"web.default.svc.cluster.local.": {"10.2.0.20"}, "db.shop.svc.cluster.local.": {"10.2.0.30"}, "example.com.": {"192.0.2.1"},
	}
	for name, test := range map[string]struct {
		name         string
		change       func(*network)
		reason, says string
	}{
		"in the own namespace": {"web", nil, "Resolved", "resolves to 10.2.0.20 for pod a, as web.default.svc.cluster.local., by 10.1.0.1 (the cluster's DNS)"},
		"in another namespace": {"db.shop", nil, "Resolved", "as db.shop.svc.cluster.local."},
		"of the outside": {"example.com", func(n *network) { n.resolvers = []string{"10.9.9.9"} }, "Resolved",
			"which forwards to 10.9.9.9 (/etc/resolv.conf); 3 names of the search list came first"},
		"absolute":          {"example.com.", nil, "Resolved", "resolves to 192.0.2.1"},
		"no such Service":   {"webs", nil, "NoSuchService", "service webs does not exist in namespace default: did you mean web?"},
		"another namespace": {"db", nil, "NoSuchService", "did you mean db.shop?"},
		"no such namespace": {"db.shp", nil, "NoSuchNamespace", "did you mean db.shop?"},
		"no such host":      {"x.peers", nil, "NoSuchHost", "service default/peers exists, and none of its Pods has the hostname x"},
		"no such name":      {"none.example.com", nil, "NameNotFound", "none of 4 names exists"},
		"invalid":           {"a..b", nil, "InvalidName", "is no name"},
		"hosts file": {"db.local", func(n *network) { n.files["/etc/hosts"] = "10.7.7.7 x db.local # y\n" }, "HostsFile",
			"resolves to 10.7.7.7 for pod a: its /etc/hosts has the name"},
		"DNS dead": {"web", func(n *network) { n.silent, n.dnsProblem = map[string]bool{"10.1.0.1": true}, "does not run: killed" },
			"DNSNotResponding", "cannot be resolved from pod a: the cluster's DNS does not run: killed"},
		"second server": {"web", func(n *network) {
			n.silent = map[string]bool{"10.1.0.2": true}
			n.files["/etc/resolv.conf"] = "nameserver 10.1.0.2\n" + clusterResolvConf
		}, "Resolved", "by 10.1.0.1"},
		"no resolver": {"none.example.com", func(n *network) { n.fails["none.example.com."] = dnsmessage.RCodeRefused }, "NoResolver",
			"because /etc/resolv.conf of the node names none"},
		"resolver unreachable": {"none.example.com", func(n *network) {
			n.fails["none.example.com."], n.resolvers, n.silent = dnsmessage.RCodeServerFailure, []string{"10.9.9.9"}, map[string]bool{"10.9.9.9": true}
		}, "ResolverUnreachable", "forwards to resolver 10.9.9.9 (/etc/resolv.conf of the node), which does not respond"},
		"resolver failing": {"none.example.com", func(n *network) {
			n.fails["none.example.com."], n.resolvers = dnsmessage.RCodeServerFailure, []string{"10.9.9.9"}
		}, "ResolverFailed", "responded SERVFAIL"},
		"machine's servers": {"db.shop", func(n *network) {
			n.files["/etc/resolv.conf"], n.names = "nameserver 10.9.9.9\n", nil
		}, "NotClusterDNS", "its name servers (10.9.9.9) are not the cluster's"},
		"no file": {"web", func(n *network) {
			delete(n.files, "/etc/resolv.conf")
			n.silent = map[string]bool{"127.0.0.1": true}
		}, "ResolverUnreachable", "its name server 127.0.0.1 is the Pod itself"},
	} {
		t.Run(name, func(t *testing.T) {
			n := healthyNetwork(func(n *network) {
				n.names, n.files, n.fails = names, map[string]string{"/etc/resolv.conf": clusterResolvConf}, map[string]dnsmessage.RCode{}
			})
			if test.change != nil {
				test.change(n)
			}
			explanation := explainName(t, test.name, n, objects...)
			require.Equal(t, test.reason, explanation.Reason, explanation.Verdict)
			require.Contains(t, explanation.Verdict, test.says)
			require.Equal(t, explain.KindName, explanation.Object.Kind)
		})
	}
}

func TestNamesOfAPodWithTheMachinesServers(t *testing.T) {
	n := &network{files: map[string]string{"/etc/resolv.conf": "nameserver 10.9.9.9\n"}}
	a := backend("a", true, func(p *corev1.Pod) { p.Spec.HostNetwork, p.Spec.DNSPolicy = true, corev1.DNSClusterFirst })
	explanation := explainName(t, "wbe.shop", n, a)
	require.Equal(t, "NotClusterDNS", explanation.Reason, explanation.Verdict)
	require.Contains(t, explanation.Verdict, "its dnsPolicy is ClusterFirst, which a Pod with hostNetwork does not get")
}

func TestNamePoliciesAreEvidence(t *testing.T) {
	n := &network{files: map[string]string{"/etc/resolv.conf": clusterResolvConf}, silent: map[string]bool{"10.1.0.1": true}}
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "closed"},
		Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}}}
	explanation := explainName(t, "web", n, backend("a", true, nil), policy)
	require.Equal(t, "DNSNotResponding", explanation.Reason)
	require.Equal(t, "NetworkPolicy/closed", explanation.Evidence[len(explanation.Evidence)-1].Object)
}

func TestNameFromAPodThatDoesNotRun(t *testing.T) {
	src := source(fake.NewClientset(pod(nil), node(corev1.ConditionTrue)), nil)
	_, err := explain.DNS(t.Context(), src, "default", "web", "x")
	require.ErrorContains(t, err, "run this on the Pod's node")
	src.Network = &network{filesErr: explain.ErrOtherMachine}
	explanation, err := explain.DNS(t.Context(), src, "default", "web", "x")
	require.NoError(t, err)
	require.Equal(t, "PodNotRunning", explanation.Reason)
	require.Contains(t, explanation.Verdict, "which does not run: waiting 10.0 s: the kubelet of node n1 is starting it")
}
