package announce

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/loadbalancer"
)

// fakeLinks is a fake because the test on real interfaces is in test/integration.
type fakeLinks struct {
	mu  sync.Mutex
	has []netip.Addr
}

func (l *fakeLinks) addresses(netip.Prefix) ([]netip.Addr, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.has), nil
}

func (l *fakeLinks) add(address, _ netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.has = append(l.has, address)
	return nil
}

func (l *fakeLinks) remove(address netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.has = slices.DeleteFunc(l.has, func(a netip.Addr) bool { return a == address })
	return nil
}

func TestAddressesFollowTheAnnotation(t *testing.T) {
	service := func(name, node, address string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{loadbalancer.AnnouncedByAnnotation: node}},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
			Status:     corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: address}}}},
		}
	}
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(service("a", "n1", "192.0.2.64"), service("b", "n2", "192.0.2.65"), service("c", "n1", "198.51.100.1"))
		links := &fakeLinks{has: []netip.Addr{netip.MustParseAddr("192.0.2.70")}}
		c, err := New(Deps{Client: client, NodeIP: func() netip.Addr { return netip.MustParseAddr("192.0.2.1") }, links: links},
			Config{NodeName: "n1", CIDR: netip.MustParsePrefix("192.0.2.64/28")})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { require.NoError(t, c.Start(ctx)) })
		synctest.Wait()
		require.ErrorContains(t, c.Start(ctx), "was started before")
		has := func() []netip.Addr {
			all, err := links.addresses(netip.Prefix{})
			require.NoError(t, err)
			return all
		}
		require.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.64")}, has(), "what an earlier run left is removed")
		_, err = client.CoreV1().Services("ns").Update(t.Context(), service("b", "n1", "192.0.2.65"), metav1.UpdateOptions{})
		require.NoError(t, err)
		require.NoError(t, client.CoreV1().Services("ns").Delete(t.Context(), "a", metav1.DeleteOptions{}))
		synctest.Wait()
		require.Equal(t, []netip.Addr{netip.MustParseAddr("192.0.2.65")}, has())
		cancel()
		running.Wait()
	})
}

// TestTheNodesOwnAddressIsKept has a range that has the node's address, which a cloud gave it as a network of its own.
func TestTheNodesOwnAddressIsKept(t *testing.T) {
	own := netip.MustParseAddr("192.0.2.1")
	links := &fakeLinks{has: []netip.Addr{own, netip.MustParseAddr("192.0.2.70")}}
	c, err := New(Deps{Client: fake.NewClientset(), NodeIP: func() netip.Addr { return own }, links: links},
		Config{NodeName: "n1", CIDR: netip.MustParsePrefix("192.0.2.0/24")})
	require.NoError(t, err)
	_, err = c.reconcile(t.Context(), struct{}{})
	require.NoError(t, err)
	require.Equal(t, []netip.Addr{own}, links.has)
}
