//go:build integration

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testproc"
)

// hub is a network that the machines of a cluster share: a bridge on this machine, which has the first address.
type hub struct {
	t      *testing.T
	name   string
	prefix string // the first three bytes of its addresses, with the last dot
	// prefix6 is the same of its IPv6 addresses, up to the colons; it is empty if it has none.
	prefix6 string
}

func newHub(t *testing.T, c *cluster) *hub {
	t.Helper()
	h := &hub{t: t, name: fmt.Sprintf("bn%d", c.network), prefix: fmt.Sprintf("10.%d.0.", c.network+2)}
	testproc.CleanupOnCrash(t, testproc.Resources{Links: []string{h.name}})
	t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", h.name).Run() })
	h.ip("link add " + h.name + " type bridge")
	h.ip("addr add " + h.address(1) + "/24 dev " + h.name)
	h.ip("link set " + h.name + " up")
	return h
}

// newHub6 returns a hub that has IPv6, too.
func newHub6(t *testing.T, c *cluster) *hub {
	t.Helper()
	h := newHub(t, c)
	h.prefix6 = fmt.Sprintf("fd00:%x::", c.network+2)
	h.ip("addr add " + h.address6(1) + "/64 dev " + h.name + " nodad")
	return h
}

func (h *hub) address6(last int) string { return h.prefix6 + fmt.Sprint(last) }

func (h *hub) address(last int) string { return h.prefix + fmt.Sprint(last) }

func (h *hub) ip(arguments string) {
	h.t.Helper()
	out, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput()
	require.NoError(h.t, err, "ip %s: %s", arguments, out)
}

// connect adds a network namespace to the hub, as a machine with that address, and returns its name.
func (h *hub) connect(last int) string {
	h.t.Helper()
	name := fmt.Sprintf("%s-%d", h.name, last)
	testproc.CleanupOnCrash(h.t, testproc.Resources{Links: []string{name}})
	h.t.Cleanup(func() {
		_ = exec.Command("ip", "link", "delete", name).Run()
		_ = exec.Command("ip", "netns", "delete", name).Run()
	})
	for _, command := range []string{
		"netns add " + name,
		"link add " + name + " type veth peer name eth0 netns " + name,
		"link set " + name + " master " + h.name,
		"link set " + name + " up",
		"-n " + name + " link set lo up",
		"-n " + name + " addr add " + h.address(last) + "/24 dev eth0",
		"-n " + name + " link set eth0 up",
		"-n " + name + " route add default via " + h.address(1),
	} {
		h.ip(command)
	}
	if h.prefix6 != "" {
		h.ip("-n " + name + " addr add " + h.address6(last) + "/64 dev eth0 nodad")
	}
	return name
}

// inside returns the command that runs a program in the network namespace.
func inside(namespace string, argv ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + namespace, "--"}, argv...)...)
}

// member is a machine of the hub that joins a cluster with the command that `berth token create` prints. Its cluster is its
// own data directory, for what the two have in common.
type member struct {
	*cluster
	name, namespace, address string
	images                   bool
}

// newMember returns the member number i, which is not running. The end of the test stops it.
func newMember(t *testing.T, h *hub, c *cluster, i int) *member {
	t.Helper()
	last := i + 1
	m := &member{
		cluster: &cluster{t: t, berth: c.berth, dataDir: filepath.Join(shortDir(t), "data"), network: c.network},
		name:    fmt.Sprintf("member-%d", i), namespace: h.connect(last), address: h.address(last),
	}
	guardNode(t, "berth-"+m.id(), "berth"+m.id(), filepath.Dir(m.dataDir), m.runDir())
	t.Cleanup(func() {
		if m.cmd != nil {
			m.stop()
		}
		if t.Failed() {
			m.dumpLogs()
		}
	})
	return m
}

// start runs `berth node` with the arguments, and returns once the node is ready.
func (m *member) start(arguments ...string) {
	m.t.Helper()
	m.out = newOutput()
	m.cmd = inside(m.namespace, append([]string{m.berth, "node", noEviction, "--data-dir", m.dataDir, "--node-name", m.name, "--healthz-port", "0"}, arguments...)...)
	m.cmd.Stdout, m.cmd.Stderr = m.out, m.out
	require.NoError(m.t, m.cmd.Start())
	m.ended = make(chan error, 1)
	go func(cmd *exec.Cmd, ended chan<- error) { ended <- cmd.Wait(); close(ended) }(m.cmd, m.ended)
	m.out.waitFor(m.t, "is ready after", m.ended)
}

// routes returns the routes of the machine; an empty namespace is this machine's.
func routes(t *testing.T, namespace string) string {
	t.Helper()
	cmd := exec.Command("ip", "route")
	if namespace != "" {
		cmd = inside(namespace, "ip", "route")
	}
	out, err := cmd.Output()
	require.NoError(t, err)
	return string(out)
}

// request is a shell script that prints the last line of the response of a web server. busybox' wget needs libraries.
func request(host, port string) string {
	return `printf 'GET / HTTP/1.0\r\n\r\n' | /bin/busybox nc -w 5 ` + host + " " + port + " | /bin/busybox tail -n 1"
}

// fetch returns the last line of the page that a request from the machine gets.
func fetch(namespace, host, port string) (string, error) {
	out, err := inside(namespace, "/bin/busybox", "sh", "-c", request(host, port)).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// fetchIn is fetch from a Pod.
func (c *cluster) fetchIn(pod, script string) []string {
	c.t.Helper()
	return strings.Fields(c.mustRun("kubectl", "exec", pod, "--", "/bin/busybox", "sh", "-c", script))
}

// joinArguments creates a token and returns the arguments of the command that it prints.
func (c *cluster) joinArguments() []string {
	c.t.Helper()
	cmd := exec.Command(c.berth, "--data-dir", c.dataDir, "token", "create")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(c.t, err)
	command := strings.Fields(string(out))
	require.Equal(c.t, []string{"berth", "node", "--join"}, command[:3])
	return command[2:]
}
