package firewall

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/internal/iptables"
	"github.com/berth-dev/berth/internal/netns"
	"github.com/berth-dev/berth/internal/testnet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// machine is a network namespace whose firewall drops what no rule accepts. Its interface "pods" leads to a namespace with the
// address 10.7.0.2, "other" to one with 10.8.0.2.
type machine struct {
	t            *testing.T
	pods, others string // names of network namespaces
}

// onMachine runs the rest of the test on a machine; it returns nil where that has passed.
func onMachine(t *testing.T) *machine {
	t.Helper()
	for _, program := range []string{"iptables", "ip6tables", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip("needs ", program)
		}
	}
	if testnet.RunInNew(t) {
		return nil
	}
	m := &machine{t: t, pods: fmt.Sprintf("berth-test-pods-%d", os.Getpid()), others: fmt.Sprintf("berth-test-others-%d", os.Getpid())}
	m.sh("ip link set lo up && mount --make-private /proc && mount -t proc proc /proc && echo 1 > /proc/sys/net/ipv4/ip_forward")
	for name, network := range map[string]string{m.pods: "10.7.0", m.others: "10.8.0"} {
		link := strings.Split(name, "-")[2]
		m.sh("ip netns add " + name)
		t.Cleanup(func() { m.sh("ip netns del " + name) })
		m.sh(fmt.Sprintf("ip link add %[1]s type veth peer name eth0 netns %[2]s && ip address add %[3]s.1/24 dev %[1]s && ip link set %[1]s up && "+
			"ip -n %[2]s address add %[3]s.2/24 dev eth0 && ip -n %[2]s link set eth0 up && ip -n %[2]s route add default via %[3]s.1", link, name, network))
	}
	for _, program := range programs {
		m.sh(program + " -P FORWARD DROP && " + program + " -P INPUT DROP && " + program + " -A INPUT -i lo -j ACCEPT && " +
			program + " -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	}
	return m
}

func (m *machine) sh(line string) string {
	m.t.Helper()
	output, err := exec.Command("sh", "-c", line).CombinedOutput()
	require.NoError(m.t, err, "%s: %s", line, output)
	return string(output)
}

// listen accepts connections in a network namespace, or on the machine if it has no name, and returns the port.
func (m *machine) listen(namespace string) (port int) {
	m.t.Helper()
	var listener net.Listener
	listen := func() (err error) {
		listener, err = net.Listen("tcp4", ":0")
		return err
	}
	if namespace == "" {
		require.NoError(m.t, listen())
	} else {
		require.NoError(m.t, netns.Do(filepath.Join("/run/netns", namespace), listen))
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	m.t.Cleanup(func() { _ = listener.Close(); <-ended })
	return listener.Addr().(*net.TCPAddr).Port
}

// connects reports whether the namespace can connect to the address.
func (m *machine) connects(namespace, address string, port int) bool {
	m.t.Helper()
	err := netns.Do(filepath.Join("/run/netns", namespace), func() error {
		conn, err := net.DialTimeout("tcp4", net.JoinHostPort(address, strconv.Itoa(port)), time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return err == nil
}

// keep keeps the rules until the result is called or the test ends.
func (m *machine) keep(pods Interface) (stop func()) {
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- pods.Keep(ctx, iptables.Deps{}) }()
	stop = sync.OnceFunc(func() { cancel(); require.NoError(m.t, <-ended) })
	m.t.Cleanup(stop)
	return stop
}

func (m *machine) eventually(condition func() bool, what string) {
	m.t.Helper()
	require.Eventually(m.t, condition, time.Minute, 10*time.Millisecond, what)
}

// TestPodsPassAFirewallThatDropsTheRest has a real firewall, of which no rule concerns Pods, and one whose last rule rejects the rest.
func TestPodsPassAFirewallThatDropsTheRest(t *testing.T) {
	m := onMachine(t)
	if m == nil {
		return
	}
	before := m.sh("iptables -S; ip6tables -S")
	pod, other, cluster, ssh := m.listen(m.pods), m.listen(m.others), m.listen(""), m.listen("")
	require.False(t, m.connects(m.pods, "10.8.0.2", other))
	require.False(t, m.connects(m.pods, "10.7.0.1", cluster))

	pods := Interface{Name: "pods", IPv6: true, TCP: []int{53, cluster}, UDP: []int{53}}
	stop := m.keep(pods)
	m.eventually(func() bool { return m.connects(m.pods, "10.8.0.2", other) }, "from a Pod to another network")
	m.eventually(func() bool { return m.connects(m.pods, "10.7.0.1", cluster) }, "from a Pod to what belongs to the cluster")
	require.True(t, m.connects(m.others, "10.7.0.2", pod), "from another network to a Pod")
	require.False(t, m.connects(m.pods, "10.7.0.1", ssh), "from a Pod to another port of the machine")
	require.False(t, m.connects(m.others, "10.7.0.1", cluster), "from another network to the machine")
	m.eventually(func() bool { return strings.Contains(m.sh("ip6tables -S"), "-A INPUT -j pods-in") }, "IPv6")

	m.sh("iptables -A FORWARD -j REJECT && iptables -I FORWARD -i pods -d 10.8.0.2 -j DROP")
	require.False(t, m.connects(m.pods, "10.8.0.2", other), "what a rule of the user drops stays dropped")
	m.sh("iptables -D FORWARD 1")
	m.eventually(func() bool { return m.connects(m.pods, "10.8.0.2", other) }, "before the rule that rejects the rest")
	m.sh("iptables -D FORWARD -j REJECT")

	stop()
	names, err := Interfaces(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"pods"}, names, "they stay for Pods that run on")
	stop = m.keep(Interface{Name: "pods", TCP: []int{ssh}})
	m.eventually(func() bool { return m.connects(m.pods, "10.7.0.1", ssh) }, "a run with other ports")
	require.False(t, m.connects(m.pods, "10.7.0.1", cluster), "those of the earlier run")
	stop()
	m.sh("nft add chain ip filter own && nft add rule ip filter own fib daddr type local drop") // which only nft can list
	names, err = Interfaces(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"pods"}, names)
	require.NoError(t, Remove(t.Context(), "pods"))
	m.sh("nft delete chain ip filter own")
	require.NotContains(t, m.sh("iptables -S"), "pods")
	stop = m.keep(Interface{Name: "pods", TCP: []int{ssh}})
	m.eventually(func() bool { return m.connects(m.pods, "10.7.0.1", ssh) }, "a run after the removal")
	stop()
	require.NoError(t, Remove(t.Context(), "other"))
	require.Contains(t, m.sh("iptables -S"), "-j pods", "those of another interface")
	require.NoError(t, Remove(t.Context(), "pods"))
	require.Equal(t, before, m.sh("iptables -S; ip6tables -S"))
	require.NoError(t, Remove(t.Context(), "pods"), "there are none")
	names, err = Interfaces(t.Context())
	require.NoError(t, err)
	require.Empty(t, names)
}

// TestAnInterfaceWithoutPortsHasNoRulesForTheMachine is that of an isolated cluster.
func TestAnInterfaceWithoutPortsHasNoRulesForTheMachine(t *testing.T) {
	m := onMachine(t)
	if m == nil {
		return
	}
	other := m.listen(m.others)
	stop := m.keep(Interface{Name: "pods", IPv6: true})
	m.eventually(func() bool { return strings.Contains(m.sh("ip6tables -S"), "-A FORWARD -j pods") }, "an earlier run with IPv6")
	stop()
	m.sh("iptables -F FORWARD")
	m.keep(Interface{Name: "pods"})
	m.eventually(func() bool { return m.connects(m.pods, "10.8.0.2", other) }, "from a Pod to another network")
	require.NotContains(t, m.sh("iptables -S; ip6tables -S"), "pods-in")
	require.NotContains(t, m.sh("ip6tables -S"), "pods", "no IPv6")
}

// TestRemovalNamesWhatExists has rules as iptables lists them.
func TestRemovalNamesWhatExists(t *testing.T) {
	listed := strings.Split(strings.TrimSpace(`
-P FORWARD DROP
-N berth01234567
-N berth01234567-other
-A FORWARD -m comment --comment "a user's \"own\"" -j berth01234567
-A FORWARD -j berth01234567-other
-A berth01234567 -i berth01234567 -j ACCEPT`), "\n")
	require.Equal(t, `*filter
-D FORWARD -m comment --comment "a user's \"own\"" -j berth01234567
-F berth01234567
-X berth01234567
COMMIT
`, removal(listed, chains("berth01234567")))
	require.Empty(t, removal(listed, chains("berth76543210")))
	require.Empty(t, removal(nil, chains("berth01234567")))
}
