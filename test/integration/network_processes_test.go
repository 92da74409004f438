//go:build integration

package integration

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestConnectionsOutliveTheProcessesOfTheNetwork kills kube-proxy and CoreDNS of a normal cluster and of two isolated ones with
// the same networks side by side: they are started again, which the cluster says, and connections go on.
func TestConnectionsOutliveTheProcessesOfTheNetwork(t *testing.T) {
	normal, isolated, beside := newClusterWithServices(t), newIsolatedCluster(t), newIsolatedCluster(t)
	copy(beside.args, isolated.args)
	for i, arg := range beside.args {
		switch arg {
		case "--data-dir":
			beside.args[i+1] = beside.dataDir
		case "--api-port":
			beside.args[i+1] = fmt.Sprint(beside.port)
		}
	}
	for _, c := range []*cluster{normal, isolated, beside} {
		c.up("--unsafe-no-fsync")
		importShell(t, c)
		c.apply(serverPod("echo", "echo", "mkdir /w; echo "+c.id()+" > /w/index.html; /bin/busybox httpd -p 8080 -h /w; exec /bin/busybox nc -ll -p 9000 -e /bin/busybox cat"))
		c.apply(serviceManifest("echo", `"type": "NodePort", "selector": {"app": "echo"}, "ports": [{"name": "echo", "port": 9000}, {"name": "http", "port": 80, "targetPort": 8080}]`))
		c.waitPod("app=echo", "ready", isReady)
	}
	for name, c := range map[string]*cluster{"normal": normal, "isolated": isolated, "beside": beside} {
		t.Run(name, func(t *testing.T) {
			host := c.gateway()
			if c != normal {
				host = c.address(t)
			}
			port := func(name string) string {
				return net.JoinHostPort(host, c.mustRun("kubectl", "get", "service", "echo", "-o", `jsonpath={.spec.ports[?(@.name=="`+name+`")].nodePort}`))
			}
			web, standing := port("http"), c.dialEcho(t, port("echo"))
			require.Equal(t, c.id(), strings.TrimSpace(get(t, "http://"+web)))
			for program, argument := range map[string]string{"kube-proxy": c.runDir() + "/kube-proxy.json", "dns": c.runDir() + "/Corefile"} {
				c.killProcess(t, argument)
				c.out.waitFor(t, program+" exited unexpectedly", c.ended)
				require.NoError(t, standing.exchange("after the end of "+program))
				require.Equal(t, c.id(), strings.TrimSpace(get(t, "http://"+web)), "new connections, too")
			}
			// New processes follow the API: a Service that is created now is reached and named.
			c.apply(serviceManifest("late", `"selector": {"app": "echo"}, "ports": [{"port": 80, "targetPort": 8080}]`))
			var out string
			require.NoError(t, c.poll(func(context.Context) bool {
				var err error
				out, err = c.run("kubectl", "exec", "echo", "--", "/bin/busybox", "wget", "-q", "-O", "-", "http://late")
				return err == nil
			}), "%s", out)
			require.Equal(t, c.id(), strings.TrimSpace(out))
			require.NoError(t, standing.exchange("at the end"))
		})
	}
	isolated.stop()
	require.Equal(t, beside.id(), strings.TrimSpace(get(t, "http://"+net.JoinHostPort(beside.address(t),
		beside.mustRun("kubectl", "get", "service", "echo", "-o", `jsonpath={.spec.ports[?(@.name=="http")].nodePort}`)))), "the other one stays")
	beside.stop()
	normal.stop()
	for _, c := range []*cluster{normal, isolated, beside} {
		require.Empty(t, c.leftovers())
	}
}

// echoConn is a connection to a server that sends back what it receives.
type echoConn struct {
	net.Conn
	lines *bufio.Reader
}

// dialEcho connects once the server responds.
func (c *cluster) dialEcho(t *testing.T, address string) *echoConn {
	t.Helper()
	var conn *echoConn
	var err error
	require.NoError(t, c.poll(func(context.Context) bool { // the program of a Pod that is ready may not listen yet
		var plain net.Conn
		if plain, err = net.Dial("tcp", address); err != nil {
			return false
		}
		conn = &echoConn{Conn: plain, lines: bufio.NewReader(plain)}
		if err = conn.exchange("before"); err != nil {
			_ = plain.Close()
		}
		return err == nil
	}), "%v", err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// exchange sends a line and waits for it to come back.
func (c *echoConn) exchange(text string) error {
	if err := c.SetDeadline(time.Now().Add(waitTimeout)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(c, text); err != nil {
		return err
	}
	line, err := c.lines.ReadString('\n')
	if err == nil && strings.TrimSpace(line) != text {
		err = fmt.Errorf("sent %q, received %q", text, line)
	}
	return err
}

// killProcess kills the process of the cluster that has the argument.
func (c *cluster) killProcess(t *testing.T, argument string) {
	t.Helper()
	for pid, command := range c.processes() {
		if strings.Contains(command, argument) {
			require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			return
		}
	}
	t.Fatalf("no process has the argument %s", argument)
}
