//go:build integration

package integration

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testnet"
)

// dropRest makes the firewall of a network namespace drop what no rule accepts, as Docker and ufw do.
const dropRest = `ip link set lo up
for program in iptables ip6tables; do
	$program -P FORWARD DROP
	$program -P INPUT DROP
	$program -A INPUT -i lo -j ACCEPT
	$program -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
done
ip6tables -A INPUT -p ipv6-icmp -j ACCEPT # neighbours find each other by it
`

// TestPodsPassTheMachinesFirewall runs clusters on a machine whose firewall drops what no rule accepts, also when another
// program has removed all rules, or all tables, those of the cluster among them.
func TestPodsPassTheMachinesFirewall(t *testing.T) {
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip("needs iptables")
	}
	if testnet.RunInNew(t) {
		return
	}
	sh := func(line string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "sh", "-ec", line).CombinedOutput()
		require.NoError(t, err, "%s: %s", line, out)
		return string(out)
	}
	sh(dropRest)

	for name, c := range map[string]*cluster{"normal": newClusterWithServices(t), "isolated": newIsolatedCluster(t)} {
		c.args[slices.Index(c.args, "--pod-cidr")+1] += fmt.Sprintf(",fd00:%x::/56", c.network)
		c.args[slices.Index(c.args, "--service-cidr")+1] += fmt.Sprintf(",fd00:%x::/112", c.network+1)
		c.up("--unsafe-no-fsync")
		importShell(t, c)
		c.apply(fmt.Sprintf(webManifest, shell("mkdir /w; /bin/busybox hostname > /w/index.html; exec /bin/busybox httpd -f -p 8080 -h /w", `"name": "web"`)))
		for _, pod := range []string{"web-0", "web-1"} {
			c.waitPod("statefulset.kubernetes.io/pod-name="+pod, "ready", isReady)
		}
		reaches := func(when string) {
			t.Helper()
			require.Contains(t, c.wget(t, "web-0", "http://web.default.svc.cluster.local"), "web-", "%s: a name and a Service", when)
			peer := c.mustRun("kubectl", "get", "pod", "web-1", "-o", "jsonpath={.status.podIP}")
			require.Equal(t, "web-1", c.wget(t, "web-0", "http://"+peer+":8080"), "%s: another Pod", when)
			c.mustRun("kubectl", "exec", "web-0", "--", "/bin/busybox", "nc", "-w", "10", "kubernetes.default.svc.cluster.local", "443")
		}
		reaches(name)
		checkOtherNetwork(t, c)
		sh("iptables -F && iptables -X && ip6tables -F && ip6tables -X && " + dropRest)
		reaches(name + ", after all rules were removed")
		if name == "normal" { // on the machine the isolated one has no table that others can remove
			checkHostPort(t, c, func() { sh("nft flush ruleset\n" + dropRest) })
			reaches(name + ", after all tables were removed")
			c.mustRun("kubectl", "scale", "statefulset/web", "--replicas=3")
			c.waitPod("statefulset.kubernetes.io/pod-name=web-2", "ready", isReady)
			require.Contains(t, sh("iptables -t nat -S POSTROUTING"), "berth pods on berth"+c.id())
			require.Contains(t, sh("nft list table ip6 berth"+c.id()), "masquerade")
		}
		c.stop()
		require.Empty(t, c.leftovers())
		require.NotContains(t, sh("iptables -S; ip6tables -S"), "berth")
	}
}

// checkHostPort reaches a Pod by a port of the machine before all tables are removed and after it.
func checkHostPort(t *testing.T, c *cluster, removeAll func()) {
	c.apply(podManifest("forwarded", shell("mkdir /w; echo hello > /w/index.html; exec /bin/busybox httpd -f -p 8080 -h /w",
		`"ports": [{"containerPort": 8080, "hostPort": 80}]`), ""))
	c.waitPod("name=forwarded", "ready", isReady)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answers := func() bool {
		response, err := client.Get("http://127.0.0.1")
		if err != nil {
			return false
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return err == nil && string(text) == "hello\n"
	}
	require.Eventually(t, answers, time.Minute, 100*time.Millisecond, "the Pod's host port")
	removeAll()
	require.Eventually(t, answers, time.Minute, 100*time.Millisecond, "the Pod's host port, after all tables were removed")
}
