package podroutes

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
)

// fakeKernel has a link to 192.0.2.0/24 and 2001:db8::/64. It is a fake because a test of the whole, on real links, is in test/integration.
type fakeKernel struct {
	changed chan struct{}

	mu    sync.Mutex
	table []route
}

func (k *fakeKernel) routes(within netip.Prefix) ([]route, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(k.table), func(r route) bool { return !within.Overlaps(r.pods) }), nil
}

func (k *fakeKernel) link(address netip.Addr) (int, error) {
	if !netip.MustParsePrefix("192.0.2.0/24").Contains(address) && !netip.MustParsePrefix("2001:db8::/64").Contains(address) {
		return 0, errNotOnLink
	}
	return 7, nil
}

func (k *fakeKernel) replace(r route) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.table = append(slices.DeleteFunc(k.table, func(old route) bool { return old.pods == r.pods }), r)
	return nil
}

func (k *fakeKernel) remove(r route) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.table = slices.DeleteFunc(k.table, func(old route) bool { return old == r })
	return nil
}

func (k *fakeKernel) watch(ctx context.Context, changed func()) error {
	for {
		select {
		case <-k.changed:
			changed()
		case <-ctx.Done():
			return nil
		}
	}
}

func (k *fakeKernel) text() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var lines []string
	for _, r := range k.table {
		lines = append(lines, r.pods.String()+" via "+r.via.String())
	}
	slices.Sort(lines)
	return lines
}

func node(name, pods, address string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: pods},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	}
}

// run runs a Controller of node n1 in a bubble while f works.
func run(t *testing.T, kernel *fakeKernel, config Config, f func(t *testing.T, client *fake.Clientset), nodes ...*corev1.Node) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		kernel.changed = make(chan struct{})
		client := fake.NewClientset()
		for _, node := range nodes {
			require.NoError(t, client.Tracker().Add(node))
		}
		c, err := New(Deps{Client: client, NodeClient: client, kernel: kernel}, config)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { require.NoError(t, c.Start(ctx)) })
		synctest.Wait()
		require.NoError(t, c.Ready())
		f(t, client)
		cancel()
		running.Wait()
	})
}

// first is the configuration of the cluster's first node, joined that of one that joined it.
func first() Config {
	return Config{NodeName: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.85.0.0/16")}}
}

func joined() Config {
	config := first()
	config.Joined = true
	return config
}

func condition(t *testing.T, client *fake.Clientset) *corev1.NodeCondition {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	require.NoError(t, err)
	return networkCondition(node)
}

func TestRoutesFollowNodes(t *testing.T) {
	stale := route{pods: netip.MustParsePrefix("10.85.9.0/24"), via: netip.MustParseAddr("192.0.2.9"), link: 7}
	kernel := &fakeKernel{table: []route{stale}}
	run(t, kernel, joined(), func(t *testing.T, client *fake.Clientset) {
		require.Equal(t, []string{"10.85.0.0/24 via 192.0.2.10"}, kernel.text(), "the route of a Node that is gone is removed")
		require.Equal(t, corev1.ConditionFalse, condition(t, client).Status)
		nodes := client.CoreV1().Nodes()
		_, err := nodes.Create(t.Context(), node("n2", "10.85.2.0/24", "192.0.2.12"), metav1.CreateOptions{})
		require.NoError(t, err)
		_, err = nodes.Create(t.Context(), node("n3", "", ""), metav1.CreateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, []string{"10.85.0.0/24 via 192.0.2.10", "10.85.2.0/24 via 192.0.2.12"}, kernel.text())
		_, err = nodes.Update(t.Context(), node("n2", "10.85.2.0/24", "192.0.2.22"), metav1.UpdateOptions{})
		require.NoError(t, err)
		require.NoError(t, nodes.Delete(t.Context(), "home", metav1.DeleteOptions{}))
		synctest.Wait()
		require.Equal(t, []string{"10.85.2.0/24 via 192.0.2.22"}, kernel.text())
		// The kernel drops routes of a link that goes down.
		kernel.mu.Lock()
		kernel.table = nil
		kernel.mu.Unlock()
		kernel.changed <- struct{}{}
		synctest.Wait()
		require.Equal(t, []string{"10.85.2.0/24 via 192.0.2.22"}, kernel.text())
	}, node("n1", "10.85.1.0/24", "192.0.2.11"), node("home", "10.85.0.0/24", "192.0.2.10"))
}

func TestNodesThatAreNotOnALinkAreReported(t *testing.T) {
	far := node("far", "10.85.3.0/24", "198.51.100.1")
	n1 := node("n1", "10.85.1.0/24", "192.0.2.11")
	run(t, &fakeKernel{}, joined(), func(t *testing.T, client *fake.Clientset) {
		got := condition(t, client)
		require.Equal(t, corev1.ConditionTrue, got.Status, "it reaches no other node")
		require.Equal(t, ReasonFailed, got.Reason)
		require.Contains(t, got.Message, "198.51.100.1 is not on a link")
		_, err := client.CoreV1().Nodes().Create(t.Context(), node("home", "10.85.0.0/24", "192.0.2.10"), metav1.CreateOptions{})
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, corev1.ConditionFalse, condition(t, client).Status, "it reaches one")
	}, n1, far)
	run(t, &fakeKernel{}, first(), func(t *testing.T, client *fake.Clientset) {
		require.Equal(t, corev1.ConditionFalse, condition(t, client).Status, "the first node stays available whoever joins")
	}, n1, far)
	foreign := node("far", "172.16.0.0/24", "192.0.2.12")
	run(t, &fakeKernel{}, joined(), func(t *testing.T, client *fake.Clientset) {
		require.Contains(t, condition(t, client).Message, "172.16.0.0/24 is not a part of the cluster's 10.85.0.0/16")
	}, n1, foreign)
}

// TestRoutesOfBothFamilies has a node whose IPv6 address is that of its own pod bridge, and one that has none.
func TestRoutesOfBothFamilies(t *testing.T) {
	both := func(name, pods, pods6, address string, addresses6 ...string) *corev1.Node {
		n := node(name, pods, address)
		n.Spec.PodCIDRs = []string{pods, pods6}
		for _, address := range addresses6 {
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
		}
		return n
	}
	config := joined()
	config.PodCIDRs = append(config.PodCIDRs, netip.MustParsePrefix("fd00:85::/56"))
	stale := route{pods: netip.MustParsePrefix("fd00:85:0:9::/64"), via: netip.MustParseAddr("2001:db8::9"), link: 7}
	kernel := &fakeKernel{table: []route{stale}}
	run(t, kernel, config, func(t *testing.T, client *fake.Clientset) {
		require.Equal(t, []string{"10.85.0.0/24 via 192.0.2.10", "10.85.2.0/24 via 192.0.2.12", "10.85.3.0/24 via 192.0.2.13",
			"fd00:85::/64 via 2001:db8::10"}, kernel.text())
		got := condition(t, client)
		require.Equal(t, corev1.ConditionFalse, got.Status, "it reaches all nodes by IPv4")
		require.Equal(t, ReasonFailed, got.Reason)
		require.Contains(t, got.Message, "bridge (its address fd00:85:0:2::1 is not on a link of node n1")
		require.Contains(t, got.Message, "none (it has no IPv6 address for the way to fd00:85:0:3::/64 (berth up --api-address IPV4,IPV6")
		nodes := client.CoreV1().Nodes()
		for _, name := range []string{"bridge", "none"} {
			require.NoError(t, nodes.Delete(t.Context(), name, metav1.DeleteOptions{}))
		}
		synctest.Wait()
		require.Equal(t, "routes to the Pods of 1 other nodes", condition(t, client).Message)
	}, both("n1", "10.85.1.0/24", "fd00:85:0:1::/64", "192.0.2.11", "2001:db8::11"),
		both("home", "10.85.0.0/24", "fd00:85::/64", "192.0.2.10", "2001:db8::10"),
		both("bridge", "10.85.2.0/24", "fd00:85:0:2::/64", "192.0.2.12", "fd00:85:0:2::1"),
		both("none", "10.85.3.0/24", "fd00:85:0:3::/64", "192.0.2.13"))
}

func TestTheConditionOfAForeignNetworkIsLeftAlone(t *testing.T) {
	config := joined()
	config.ForeignNetwork = true
	n1, far := node("n1", "10.85.1.0/24", "192.0.2.11"), node("far", "10.85.3.0/24", "198.51.100.1")
	run(t, &fakeKernel{}, config, func(t *testing.T, client *fake.Clientset) { require.Nil(t, condition(t, client)) }, n1, far)
}

func TestAClusterOfOneMachineHasNoCondition(t *testing.T) {
	run(t, &fakeKernel{}, first(), func(t *testing.T, client *fake.Clientset) {
		require.Nil(t, condition(t, client))
	}, node("n1", "10.85.0.0/24", "10.85.0.1"))
}

func TestNewNamesWhatIsMissing(t *testing.T) {
	_, err := New(Deps{}, Config{})
	require.ErrorContains(t, err, "Deps.Client")
	client := fake.NewClientset()
	_, err = New(Deps{Client: client, NodeClient: client}, Config{})
	require.ErrorContains(t, err, "Config.NodeName")
}
