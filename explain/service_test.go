package explain_test

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/explain"
)

// service is one that selects app=web and leads from port 80 to 8080.
func service(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "service", CreationTimestamp: before(time.Minute)},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.2.0.20", Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}}},
	}
	if change != nil {
		change(s)
	}
	return s
}

// backend is a Pod that the Service selects.
func backend(name string, ready bool, change func(*corev1.Pod)) *corev1.Pod {
	return pod(func(p *corev1.Pod) {
		p.Name, p.Labels = name, map[string]string{"app": "web"}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}
		p.Status.Phase, p.Status.PodIP = corev1.PodRunning, "10.1.0.5"
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Ready: ready, State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: before(5 * time.Second)}}}}
		if ready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		if change != nil {
			change(p)
		}
	})
}

// endpointSlice has one endpoint on a node.
func endpointSlice(service, address, node string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: ptr.To(node),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
	}
}

func namedNode(name, address string) *corev1.Node {
	n := node(corev1.ConditionTrue)
	n.Name, n.Status.Addresses = name, []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	return n
}

func explainWeb(t *testing.T, network explain.Network, objects ...runtime.Object) *explain.Explanation {
	t.Helper()
	src := source(fake.NewClientset(objects...), nil)
	src.Network = network
	explanation, err := explain.Explain(t.Context(), src, explain.KindService, "default", "web")
	require.NoError(t, err)
	return explanation
}

func TestServicesByTheirObjects(t *testing.T) {
	labelled := func(labels map[string]string) *corev1.Pod {
		return backend("p", true, func(p *corev1.Pod) { p.Labels = labels })
	}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}}
	other := func(change func(*corev1.Service)) *corev1.Service {
		return service(func(s *corev1.Service) { s.Name, s.UID = "other", "other"; change(s) })
	}
	ingress := corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "10.9.0.1"}}}}
	loadBalancer := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }
	for name, test := range map[string]struct {
		objects      []runtime.Object
		reason, says string
	}{
		"value of a label": {[]runtime.Object{service(nil), labelled(map[string]string{"app": "wbe"})}, "SelectorMatchesNothing",
			`selector app=web matches none of the 1 Pod of namespace default; pod p comes closest: its label app is "wbe", not "web"`},
		"name of a label": {[]runtime.Object{service(nil), labelled(map[string]string{"apps": "web"})}, "SelectorMatchesNothing",
			"it has label apps=web, not app=web"},
		"one label of two": {[]runtime.Object{service(func(s *corev1.Service) { s.Spec.Selector["tier"] = "front" }), labelled(map[string]string{"app": "web"})},
			"SelectorMatchesNothing", "pod p comes closest: it lacks label tier=front"},
		"nothing close": {[]runtime.Object{service(nil), labelled(map[string]string{"x": "y"})}, "SelectorMatchesNothing", "matches none of the 1 Pod of namespace default"},
		"other namespace": {[]runtime.Object{service(nil), backend("p", true, func(p *corev1.Pod) { p.Namespace = "shop" })}, "SelectorMatchesNothing",
			"namespace shop has Pods with these labels"},
		"scaled to zero": {[]runtime.Object{service(nil), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](0), Template: template}}}, "ScaledToZero", "the Pods of deployment web match its selector, and it has 0 replicas"},
		"Pods rejected": {[]runtime.Object{service(nil), &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
			Spec: appsv1.ReplicaSetSpec{Template: template}, Status: appsv1.ReplicaSetStatus{Conditions: []appsv1.ReplicaSetCondition{{
				Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: "exceeded quota"}}}}},
			"FailedCreate", "the Pods of replicaset web would match its selector, and none exists: "},
		"Pods not ready": {[]runtime.Object{service(nil), node(corev1.ConditionTrue), backend("a", false, nil), backend("b", false, nil)}, "NotReady",
			"none of the 2 Pods that its selector matches is ready; pod a: waiting 5.0 s: container main runs, but is not ready yet"},
		"name of a port": {[]runtime.Object{service(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromString("htpt") }), backend("a", true, nil)},
			"TargetPortMissing", `its targetPort "htpt" is the name of no container port of pod a, which has http (8080/TCP)`},
		"no selector": {[]runtime.Object{service(func(s *corev1.Service) { s.Spec.Selector = nil })}, "NoEndpointsGiven", "it has no selector"},
		"not yet":     {[]runtime.Object{service(nil), backend("a", true, nil)}, "EndpointsPending", "1 Pod is ready, and its EndpointSlices do not have them yet"},
		"address as name": {[]runtime.Object{service(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "10.0.0.1"
		})}, "ExternalNameIsAddress", "10.0.0.1 is an address"},
		"alias": {[]runtime.Object{service(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "db.example.com"
		})}, "Alias", "is an alias of db.example.com"},
		"load balancer": {[]runtime.Object{service(loadBalancer), backend("a", true, nil), endpointSlice("web", "10.1.0.5", "n1"),
			&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e"}, InvolvedObject: corev1.ObjectReference{UID: "service"},
				Type: corev1.EventTypeWarning, Reason: "NoAddress", Message: "no address is free", Source: corev1.EventSource{Component: "lb"}}},
			"LoadBalancerPending", "it has no load balancer's address yet; inside the cluster it works: no address is free"},
		"host port": {[]runtime.Object{service(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
		}), backend("a", true, nil), endpointSlice("web", "10.1.0.5", "n1"), pod(func(p *corev1.Pod) {
			p.Namespace, p.Name = "kube-system", "x"
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 30080, ContainerPort: 1}}
		})}, "PortTaken", "pod kube-system/x has it as its hostPort"},
		"host port of a sidecar": {[]runtime.Object{service(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
		}), backend("a", true, nil), endpointSlice("web", "10.1.0.5", "n1"), pod(func(p *corev1.Pod) {
			p.Namespace, p.Name = "kube-system", "x"
			p.Spec.InitContainers = []corev1.Container{{Name: "side", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
				Ports: []corev1.ContainerPort{{HostPort: 30080, ContainerPort: 1}}}}
		})}, "PortTaken", "pod kube-system/x has it as its hostPort"},
		"load balancer's port": {[]runtime.Object{service(func(s *corev1.Service) { loadBalancer(s); s.Status = ingress }), backend("a", true, nil),
			endpointSlice("web", "10.1.0.5", "n1"), other(func(s *corev1.Service) { loadBalancer(s); s.Status = ingress })},
			"PortTaken", "service default/other has the same address and port"},
		"no local endpoint": {[]runtime.Object{service(func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		}), backend("a", true, nil), endpointSlice("web", "10.1.0.5", "n1"), namedNode("n1", "10.3.0.1"), namedNode("n2", "10.3.0.2")},
			"NoLocalEndpoint", "connections of Pods on node n2 are dropped"},
		"no local endpoint outside": {[]runtime.Object{service(func(s *corev1.Service) {
			loadBalancer(s)
			s.Spec.ExternalTrafficPolicy, s.Status = corev1.ServiceExternalTrafficPolicyLocal, ingress
		}), backend("a", true, nil), endpointSlice("web", "10.1.0.5", "n1"), namedNode("n1", "10.3.0.1"), namedNode("n2", "10.9.0.1")},
			"NoLocalEndpoint", "connections to the address of node n2 are dropped"},
		"local endpoints": {[]runtime.Object{service(func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		}), backend("a", true, nil), endpointSlice("web", "10.1.0.5", "n1"), namedNode("n1", "10.3.0.1")}, "Ready", "leads to 1 of 1 Pod at 10.2.0.20"},
		"headless": {[]runtime.Object{service(func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }), backend("a", true, nil),
			endpointSlice("web", "10.1.0.5", "n1")}, "Ready", "it is headless, and its name web.default.svc.cluster.local has the addresses of the Pods"},
		"not ready, but published": {[]runtime.Object{service(func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }), backend("a", false, nil),
			endpointSlice("web", "10.1.0.5", "n1")}, "Ready", "leads to 1 of 1 Pod"},
	} {
		t.Run(name, func(t *testing.T) {
			explanation := explainWeb(t, nil, test.objects...)
			require.Equal(t, test.reason, explanation.Reason, explanation.Verdict)
			require.Contains(t, explanation.Verdict, test.says)
			require.NotEmpty(t, explanation.Evidence)
			if explanation.Stuck() {
				require.NotEmpty(t, explanation.Next)
			}
		})
	}
}

// network is a node's network for tests; its name server is run by the test.
type network struct {
	sockets    map[string][]explain.Socket
	socketsErr error
	proxy      explain.ProxyState
	dnsProblem string
	resolvers  []string
	files      map[string]string
	filesErr   error
	// names are the addresses of full names, fails the response codes of those that fail, and silent the servers that do not
	// respond.
	names  map[string][]string
	fails  map[string]dnsmessage.RCode
	silent map[string]bool
}

func (n *network) Sockets(_ context.Context, pod *corev1.Pod) ([]explain.Socket, error) {
	return n.sockets[pod.Name], n.socketsErr
}

func (n *network) ReadFile(_ context.Context, _ *corev1.Pod, path string) ([]byte, error) {
	if content, ok := n.files[path]; ok {
		return []byte(content), nil
	}
	if n.filesErr != nil {
		return nil, n.filesErr
	}
	return nil, fmt.Errorf("open %s: %w", path, fs.ErrNotExist)
}

func (n *network) Proxy(context.Context) (explain.ProxyState, error) { return n.proxy, nil }
func (n *network) DNSProblem(context.Context) string                 { return n.dnsProblem }
func (n *network) Resolvers(context.Context) ([]string, string, error) {
	return n.resolvers, "/etc/resolv.conf", nil
}

func (n *network) Dial(_ context.Context, _ *corev1.Pod, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if port != "53" || n.silent[host] {
		return nil, fmt.Errorf("dial %s: %w", address, syscall.ECONNREFUSED)
	}
	ours, theirs := net.Pipe()
	go n.serve(theirs)
	return ours, nil
}

// serve responds to one question.
func (n *network) serve(conn net.Conn) {
	defer conn.Close()
	buffer := make([]byte, 1<<12)
	size, err := conn.Read(buffer)
	if err != nil {
		return
	}
	var message dnsmessage.Message
	if message.Unpack(buffer[:size]) != nil {
		return
	}
	question := message.Questions[0]
	name := question.Name.String()
	message.Response = true
	addresses, ok := n.names[name]
	code, fails := n.fails[name]
	switch {
	case fails:
		message.RCode = code
	case !ok:
		message.RCode = dnsmessage.RCodeNameError
	case question.Type == dnsmessage.TypeA:
		for _, address := range addresses {
			message.Answers = append(message.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class},
				Body:   &dnsmessage.AResource{A: [4]byte(net.ParseIP(address).To4())},
			})
		}
	}
	packed, err := message.Pack()
	if err == nil {
		_, _ = conn.Write(packed) // the reader may have gone
	}
}

// healthyNetwork is one in which the Service web works.
func healthyNetwork(change func(*network)) *network {
	n := &network{
		sockets: map[string][]explain.Socket{"a": {{Protocol: corev1.ProtocolTCP, Address: net.IPv6zero, Port: 8080, Process: "web (process 7)"}}},
		proxy:   explain.ProxyState{QueuedAt: now.Add(-time.Minute), SyncedAt: now.Add(-time.Minute + time.Millisecond)},
		names:   map[string][]string{"web.default.svc.cluster.local.": {"10.2.0.20"}},
	}
	if change != nil {
		change(n)
	}
	return n
}

// clusterDNS are the objects of the cluster's DNS.
func clusterDNS() []runtime.Object {
	slice := endpointSlice("kube-dns", "10.1.0.1", "n1")
	slice.Namespace = metav1.NamespaceSystem
	return []runtime.Object{slice, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-dns"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.2.0.10", ClusterIPs: []string{"10.2.0.10"}}}}
}

func TestServicesByTheNetwork(t *testing.T) {
	tcp := func(address string, port int32) []explain.Socket {
		return []explain.Socket{{Protocol: corev1.ProtocolTCP, Address: net.ParseIP(address), Port: port, Process: "web (process 7)"}}
	}
	for name, test := range map[string]struct {
		change       func(*network)
		reason, says string
	}{
		"works": {nil, "Ready", "leads to 1 of 1 Pod at 10.2.0.20 (web.default.svc.cluster.local)"},
		"other port": {func(n *network) { n.sockets["a"] = tcp("0.0.0.0", 80) }, "NothingListens",
			"port 80 leads to 8080/TCP of pod a, and no process listens there; the Pod listens on 80/TCP (web (process 7))"},
		"other protocol": {func(n *network) { n.sockets["a"][0].Protocol = corev1.ProtocolUDP }, "NothingListens", "the Pod listens on 8080/UDP"},
		"loopback": {func(n *network) { n.sockets["a"] = tcp("127.0.0.1", 8080) }, "ListensOnLoopback",
			"where web (process 7) listens on 127.0.0.1 only"},
		"Pod's own address": {func(n *network) { n.sockets["a"] = tcp("10.1.0.5", 8080) }, "Ready", ""},
		"Pod of another machine": {func(n *network) { n.socketsErr = explain.ErrOtherMachine }, "NothingListens",
			"8080/TCP of pod a, which refuses connections"},
		"proxy dead": {func(n *network) { n.proxy = explain.ProxyState{Problem: "does not run: exit status 1"} }, "ProxyNotRunning",
			"its address 10.2.0.20 may not lead to its Pods: kube-proxy of this node does not run: exit status 1"},
		"proxy behind": {func(n *network) {
			n.proxy = explain.ProxyState{SyncedAt: now.Add(-time.Hour), QueuedAt: now.Add(-3 * time.Second), Failures: 4}
		}, "ProxyNotSynced", "has not written the changes of the last 3.0 s: writing its rules failed 4 times"},
		"proxy at work": {func(n *network) { n.proxy.QueuedAt = now.Add(-time.Millisecond) }, "Ready", ""},
		"DNS silent":    {func(n *network) { n.silent = map[string]bool{"10.1.0.1": true} }, "DNSNotResponding", "the cluster's DNS does not respond"},
		"DNS dead": {func(n *network) {
			n.silent, n.dnsProblem = map[string]bool{"10.1.0.1": true}, "does not run: killed"
		}, "DNSNotResponding", "the cluster's DNS does not run: killed"},
		"name unknown": {func(n *network) { n.names = nil }, "NameNotResolved", "does not resolve to its address: the cluster's DNS 10.1.0.1 responded: NXDOMAIN"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append(clusterDNS(), service(nil), backend("a", true, nil), endpointSlice("web", "10.1.0.5", "n1"))
			explanation := explainWeb(t, healthyNetwork(test.change), objects...)
			require.Equal(t, test.reason, explanation.Reason, explanation.Verdict)
			require.Contains(t, explanation.Verdict, test.says)
		})
	}
}

func TestAliasThatDoesNotResolve(t *testing.T) {
	for target, says := range map[string]string{
		"db.default.svc.cluster.local": "service db does not exist in namespace default: did you mean db.shop?",
		"db.shp.svc.cluster.local":     "namespace shp does not exist: did you mean db.shop?",
		"db.example.com":               "which does not resolve: NXDOMAIN",
	} {
		objects := append(clusterDNS(), service(func(s *corev1.Service) {
			s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: target}
		}), service(func(s *corev1.Service) { s.Namespace, s.Name = "shop", "db" }),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
		explanation := explainWeb(t, &network{}, objects...)
		require.Equal(t, "ExternalNameNotFound", explanation.Reason, explanation.Verdict)
		require.Contains(t, explanation.Verdict, says)
	}
}

func TestWebhookWithoutEndpoints(t *testing.T) {
	message := `Internal error occurred: failed calling webhook "check.example.com": failed to call webhook: ` +
		`Post "https://web.default.svc:443/check?timeout=10s": no endpoints available for service "web"`
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x", UID: "x"}, Status: appsv1.ReplicaSetStatus{
		Conditions: []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Reason: "FailedCreate", Message: message}}}}
	for says, objects := range map[string][]runtime.Object{
		`pod a comes closest: its label app is "wbe", not "web"`: {service(nil), backend("a", true, func(p *corev1.Pod) { p.Labels["app"] = "wbe" })},
		"which serves webhook check.example.com, does not exist": nil,
	} {
		src := source(fake.NewClientset(append(objects, set.DeepCopy())...), nil)
		explanation, err := explain.Explain(t.Context(), src, explain.KindReplicaSet, "default", "x")
		require.NoError(t, err)
		require.Equal(t, "WebhookFailed", explanation.Reason, explanation.Verdict)
		require.Equal(t, "service default/web of webhook check.example.com", explanation.HeldBy)
		require.Contains(t, explanation.Verdict, says)
	}
}

func TestStuckListsServicesWithoutEndpoints(t *testing.T) {
	src := source(fake.NewClientset(service(nil), service(func(s *corev1.Service) { s.Name, s.UID = "good", "good" }),
		endpointSlice("good", "10.1.0.5", "n1"), backend("a", true, nil)), nil)
	explanations, _, err := explain.Stuck(t.Context(), src, "", "")
	require.NoError(t, err)
	require.Len(t, explanations, 1)
	require.Equal(t, "web", explanations[0].Object.Name)
}
