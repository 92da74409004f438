package loadbalancer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/loadbalancer"
)

var servicesGVR = corev1.SchemeGroupVersion.WithResource("services")

// fixture is a controller on a fake API server, in a bubble.
type fixture struct {
	t      *testing.T
	client *fake.Clientset
}

// run runs a controller while f works. The objects exist before.
func run(t *testing.T, deps loadbalancer.Deps, config loadbalancer.Config, f func(x *fixture), objects ...metav1.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		for _, object := range objects {
			switch object := object.(type) {
			case *corev1.Node:
				require.NoError(t, client.Tracker().Add(object))
			case *corev1.Service:
				require.NoError(t, client.Tracker().Add(object))
			}
		}
		deps.Client = client
		c, err := loadbalancer.New(deps, config)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { require.NoError(t, c.Start(ctx)) })
		synctest.Wait()
		require.NoError(t, c.Ready())
		require.ErrorContains(t, c.Start(ctx), "was started before")
		f(&fixture{t, client})
		cancel()
		running.Wait()
	})
}

func node(name, address string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
}

func notReady(node *corev1.Node) *corev1.Node {
	node.Status.Conditions[0].Status = corev1.ConditionFalse
	return node
}

func service(name string, ports ...int32) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	for _, port := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint(port), Port: port, Protocol: corev1.ProtocolTCP})
	}
	return s
}

func with(s *corev1.Service, change func(*corev1.Service)) *corev1.Service {
	change(s)
	return s
}

func (x *fixture) create(s *corev1.Service) {
	x.t.Helper()
	_, err := x.client.CoreV1().Services("ns").Create(x.t.Context(), s, metav1.CreateOptions{})
	require.NoError(x.t, err)
	synctest.Wait()
}

func (x *fixture) delete(name string) {
	x.t.Helper()
	require.NoError(x.t, x.client.CoreV1().Services("ns").Delete(x.t.Context(), name, metav1.DeleteOptions{}))
	synctest.Wait()
}

func (x *fixture) get(name string) *corev1.Service {
	x.t.Helper()
	s, err := x.client.CoreV1().Services("ns").Get(x.t.Context(), name, metav1.GetOptions{})
	require.NoError(x.t, err)
	return s
}

// tracked is get for a reactor, which must not use the client.
func (x *fixture) tracked(name string) *corev1.Service {
	x.t.Helper()
	object, err := x.client.Tracker().Get(servicesGVR, "ns", name)
	require.NoError(x.t, err)
	return object.(*corev1.Service).DeepCopy()
}

// addresses returns the Service's addresses, or the reason for having none.
func (x *fixture) addresses(name string) string {
	x.t.Helper()
	s := x.get(name)
	var all []string
	for _, ingress := range s.Status.LoadBalancer.Ingress {
		require.Equal(x.t, corev1.LoadBalancerIPModeVIP, *ingress.IPMode)
		all = append(all, ingress.IP)
	}
	if condition := meta.FindStatusCondition(s.Status.Conditions, loadbalancer.ConditionAssigned); len(all) == 0 && condition != nil {
		return condition.Reason
	}
	return strings.Join(all, " ")
}

func TestServicesGetTheNodesAddresses(t *testing.T) {
	run(t, loadbalancer.Deps{}, loadbalancer.Config{}, func(x *fixture) {
		x.create(service("web", 80, 443))
		require.Equal(t, "192.0.2.1 192.0.2.2", x.addresses("web"))
		x.create(service("other", 80))
		require.Equal(t, loadbalancer.ReasonPortTaken, x.addresses("other"))
		message := meta.FindStatusCondition(x.get("other").Status.Conditions, loadbalancer.ConditionAssigned).Message
		require.Contains(t, message, "port 80/TCP of the nodes belongs to Service ns/web")
		x.create(service("third", 8080))
		require.Equal(t, "192.0.2.1 192.0.2.2", x.addresses("third"))

		x.delete("web")
		require.Equal(t, "192.0.2.1 192.0.2.2", x.addresses("other"), "the port is free")
		_, err := x.client.CoreV1().Nodes().UpdateStatus(t.Context(), notReady(node("b", "192.0.2.2")), metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, "192.0.2.1", x.addresses("other"))
		time.Sleep(time.Second) // fake time: events are written by then
		synctest.Wait()
		events, err := x.client.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		reasons := map[string]string{}
		for _, event := range events.Items {
			reasons[event.Reason] = event.Type
		}
		require.Equal(t, map[string]string{"Assigned": "Normal", "PortTaken": "Warning"}, reasons)
	}, node("a", "192.0.2.1"), node("b", "192.0.2.2"), notReady(node("c", "192.0.2.3")),
		with2(node("d", "192.0.2.4"), corev1.LabelNodeExcludeBalancers))
}

func with2(node *corev1.Node, label string) *corev1.Node {
	node.Labels = map[string]string{label: ""}
	return node
}

func TestOtherClassesAndTypesAreLeftAlone(t *testing.T) {
	foreign := with(service("foreign", 80), func(s *corev1.Service) {
		s.Spec.LoadBalancerClass = ptr.To("example.com/lb")
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.1", IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)}}
	})
	run(t, loadbalancer.Deps{}, loadbalancer.Config{}, func(x *fixture) {
		x.create(with(service("ours", 80), func(s *corev1.Service) { s.Spec.LoadBalancerClass = ptr.To(loadbalancer.Class) }))
		x.create(with(service("plain", 80), func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }))
		require.Equal(t, "192.0.2.1", x.addresses("ours"))
		require.Equal(t, "192.0.2.1", x.addresses("foreign"))
		require.Empty(t, x.addresses("plain"))
		require.Empty(t, x.get("foreign").Status.Conditions)
		// It becomes a plain Service.
		changed := x.get("ours")
		changed.Spec.Type, changed.Spec.LoadBalancerClass, changed.Status.LoadBalancer = corev1.ServiceTypeClusterIP, nil, corev1.LoadBalancerStatus{}
		_, err := x.client.CoreV1().Services("ns").Update(t.Context(), changed, metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Empty(t, x.get("ours").Status.Conditions)
	}, node("a", "192.0.2.1"), foreign)
}

func TestProgramsOfTheMachineKeepTheirPorts(t *testing.T) {
	var ended atomic.Bool
	deps := loadbalancer.Deps{PortOwner: func(address netip.Addr, protocol corev1.Protocol, port int32) string {
		if address.String() == "192.0.2.1" && protocol == corev1.ProtocolTCP && port == 22 && !ended.Load() {
			return "sshd (process 7)"
		}
		return ""
	}}
	run(t, deps, loadbalancer.Config{}, func(x *fixture) {
		x.create(service("git", 22))
		require.Equal(t, loadbalancer.ReasonPortTaken, x.addresses("git"))
		ended.Store(true)
		time.Sleep(time.Minute) // fake time
		synctest.Wait()
		require.Equal(t, "192.0.2.1", x.addresses("git"))
	}, node("a", "192.0.2.1"))
}

func TestServicesGetAddressesOfTheRange(t *testing.T) {
	had := with(service("had", 80), func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "192.0.2.65"}}
	})
	config := loadbalancer.Config{CIDR: netip.MustParsePrefix("192.0.2.64/30"), FirstNode: "b"}
	run(t, loadbalancer.Deps{}, config, func(x *fixture) {
		x.create(service("one", 80))
		x.create(service("two", 80))
		require.Equal(t, "192.0.2.65", x.addresses("had"), "an address stays over a restart")
		require.Equal(t, "192.0.2.64", x.addresses("one"))
		require.Equal(t, "192.0.2.66", x.addresses("two"))
		x.create(with(service("chosen", 80), func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.65" }))
		require.Equal(t, loadbalancer.ReasonAddressUnavailable, x.addresses("chosen"))
		x.create(with(service("outside", 80), func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.1" }))
		require.Equal(t, loadbalancer.ReasonAddressUnavailable, x.addresses("outside"))
		x.create(service("last", 80))
		x.create(service("late", 80))
		require.Equal(t, "192.0.2.67", x.addresses("last"))
		require.Equal(t, loadbalancer.ReasonAddressUnavailable, x.addresses("late"))
		x.delete("had")
		require.ElementsMatch(t, []string{"192.0.2.65", loadbalancer.ReasonAddressUnavailable},
			[]string{x.addresses("chosen"), x.addresses("late")}, "one of those that wait gets it")

		announcer := func(name string) string { return x.get(name).Annotations[loadbalancer.AnnouncedByAnnotation] }
		require.Equal(t, "b", announcer("one"))
		_, err := x.client.CoreV1().Nodes().UpdateStatus(t.Context(), notReady(node("b", "192.0.2.2")), metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, "a", announcer("one"), "another node takes over")
		require.Equal(t, "192.0.2.64", x.addresses("one"))
	}, node("a", "192.0.2.1"), node("b", "192.0.2.2"), had)
}

func TestLocalTrafficGoesToNodesWithEndpoints(t *testing.T) {
	local := func(name string) *corev1.Service {
		return with(service(name, 80), func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	}
	slice := func(node string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.85.0.9"}, NodeName: ptr.To(node)}},
		}
	}
	nodes := []metav1.Object{node("a", "192.0.2.1"), node("b", "192.0.2.2")}
	run(t, loadbalancer.Deps{}, loadbalancer.Config{}, func(x *fixture) {
		x.create(local("web"))
		require.Equal(t, loadbalancer.ReasonAddressUnavailable, x.addresses("web"))
		slices := x.client.DiscoveryV1().EndpointSlices("ns")
		_, err := slices.Create(t.Context(), slice("b"), metav1.CreateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, "192.0.2.2", x.addresses("web"))
		_, err = slices.Update(t.Context(), slice("a"), metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, "192.0.2.1", x.addresses("web"))
	}, nodes...)
	config := loadbalancer.Config{CIDR: netip.MustParsePrefix("192.0.2.64/30"), FirstNode: "a"}
	run(t, loadbalancer.Deps{}, config, func(x *fixture) {
		_, err := x.client.DiscoveryV1().EndpointSlices("ns").Create(t.Context(), slice("b"), metav1.CreateOptions{})
		require.NoError(t, err)
		x.create(local("web"))
		require.Equal(t, "192.0.2.64", x.addresses("web"))
		require.Equal(t, "b", x.get("web").Annotations[loadbalancer.AnnouncedByAnnotation])
	}, nodes...)
}

func TestWaitingServicesGetPortsAlsoAfterAConflict(t *testing.T) {
	var logged bytes.Buffer
	deps := loadbalancer.Deps{Logger: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelError}))}
	run(t, deps, loadbalancer.Config{}, func(x *fixture) {
		x.create(service("a", 80))
		x.create(service("b", 80))
		require.Equal(t, loadbalancer.ReasonPortTaken, x.addresses("b"))
		var conflicts atomic.Int32
		x.client.PrependReactor("update", "services", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.GetSubresource() != "status" || conflicts.Add(1) > 1 {
				return false, nil, nil
			}
			changed := x.tracked("a")
			changed.Labels = map[string]string{"changed": ""}
			require.NoError(t, x.client.Tracker().Update(servicesGVR, changed, "ns"))
			return true, nil, apierrors.NewConflict(servicesGVR.GroupResource(), "a", errors.New("it has changed"))
		})
		a := x.get("a")
		a.Spec.Ports[0].Port, a.Generation = 81, a.Generation+1
		_, err := x.client.CoreV1().Services("ns").Update(t.Context(), a, metav1.UpdateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Greater(t, conflicts.Load(), int32(1))
		require.Equal(t, "192.0.2.1", x.addresses("a"))
		require.Equal(t, "192.0.2.1", x.addresses("b"))
		require.Equal(t, map[string]string{"changed": ""}, x.get("a").Labels)
	}, node("n1", "192.0.2.1"))
	require.Empty(t, logged.String(), "the event of the change follows: a conflict is no failure")
}
