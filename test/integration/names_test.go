//go:build integration

package integration

import (
	"context"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// nameServer resolves names of the outside on a loopback address of the machine.
type nameServer struct {
	address string
	conn    net.PacketConn

	mu    sync.Mutex // guards names
	names map[string][4]byte
	// forward is where it sends what it does not know, empty for nowhere.
	forward string
}

// startNameServer starts a name server that knows outside.example, with port 53 of the address.
func startNameServer(t *testing.T, address string) *nameServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", net.JoinHostPort(address, "53"))
	require.NoError(t, err)
	s := &nameServer{address: address, conn: conn, names: map[string][4]byte{"outside.example.": {192, 0, 2, 7}}}
	var served sync.WaitGroup
	served.Go(s.serve)
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		served.Wait()
	})
	return s
}

func (s *nameServer) set(name string, address [4]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[name] = address
}

func (s *nameServer) forwardTo(address string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forward = address
}

func (s *nameServer) serve() {
	buffer := make([]byte, 1<<12)
	for {
		size, from, err := s.conn.ReadFrom(buffer)
		if err != nil {
			return
		}
		request := append([]byte{}, buffer[:size]...)
		if response := s.respond(request, from); response != nil {
			_, _ = s.conn.WriteTo(response, from) // the client may have gone
		}
	}
}

func (s *nameServer) respond(request []byte, from net.Addr) []byte {
	var message dnsmessage.Message
	if message.Unpack(request) != nil || len(message.Questions) != 1 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	question := message.Questions[0]
	address, known := s.names[question.Name.String()]
	if !known && s.forward != "" {
		go s.pass(request, from, s.forward)
		return nil
	}
	message.Response, message.Additionals = true, nil
	switch {
	case !known:
		message.RCode = dnsmessage.RCodeNameError
	case question.Type == dnsmessage.TypeA:
		message.Answers = []dnsmessage.Resource{{Body: &dnsmessage.AResource{A: address},
			Header: dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class}}}
	}
	packed, err := message.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// pass sends a request to another server, and its response to the client.
func (s *nameServer) pass(request []byte, from net.Addr, server string) {
	conn, err := net.Dial("udp", net.JoinHostPort(server, "53"))
	if err != nil {
		return
	}
	defer conn.Close()
	buffer := make([]byte, 1<<12)
	if _, err := conn.Write(request); err != nil {
		return
	}
	if size, err := conn.Read(buffer); err == nil {
		_, _ = s.conn.WriteTo(buffer[:size], from) // the client may have gone
	}
}

// nameCauses are causes why a name does not resolve in a Pod.
func nameCauses(t *testing.T, c *cluster, resolvConf string) []serviceCause {
	dns := func(name string) []string { return []string{"dns", name, "--from", "pod/backend"} }
	servers := func(content string) func() {
		return func() { require.NoError(t, os.WriteFile(resolvConf, []byte(content), 0o600)) }
	}
	original := string(readFile(t, resolvConf))
	return []serviceCause{
		{reason: "Resolved", wantText: "as server.default.svc.cluster.local., by " + c.gateway() + " (the cluster's DNS)", object: dns("server")},
		{reason: "Resolved", wantText: "resolves to 192.0.2.7 for pod backend, as outside.example.", object: dns("outside.example")},
		{reason: "HostsFile", wantText: "its /etc/hosts has the name", object: dns("localhost")},
		{reason: "NoSuchService", wantText: "did you mean server?", object: dns("servr")},
		{reason: "NoSuchNamespace", wantText: "did you mean server.default?", object: dns("server.defalt")},
		{reason: "NoSuchHost", wantText: "none of its Pods has the hostname x", object: dns("x.heads"), setUp: func() {
			c.apply(serviceManifest("heads", `"clusterIP": "None", "selector": {"app": "server"}, "ports": [{"port": 8080}]`))
		}},
		{reason: "SelectorMatchesNothing", wantText: "service default/headless-typo reaches no Pod", object: dns("headless-typo"), setUp: func() {
			c.apply(serviceManifest("headless-typo", `"clusterIP": "None", "selector": {"app": "serve"}, "ports": [{"port": 8080}]`))
		}},
		{reason: "NameNotFound", wantText: "NXDOMAIN", object: dns("none.example.test")},
		{reason: "InvalidName", wantText: "is no name", object: dns("a..b")},
		{reason: "NotClusterDNS", wantText: "because its dnsPolicy is None", object: []string{"dns", "server.default", "--from", "pod/plain"},
			setUp: func() {
				servers("nameserver 192.0.2.53\n")()
				c.apply(podManifest("plain", shell("sleep 1000", ""), `"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.77"]}, "hostNetwork": true`))
				c.waitPod("name=plain", "ready", isReady)
			}},
		{reason: "NoResolver", wantText: "because " + resolvConf + " of the node names none", object: dns("outside.example"), setUp: servers("")},
		{reason: "ResolverUnreachable", wantText: "the cluster's DNS forwards to resolver 127.0.0.78", object: dns("outside.example"),
			setUp: servers("nameserver 127.0.0.78\n"), undo: servers(original)},
		{reason: "DNSNotResponding", wantText: "the cluster's DNS does not respond", object: dns("server"),
			setUp: func() { c.signalProgram("dns", syscall.SIGSTOP) }, undo: func() { c.signalProgram("dns", syscall.SIGCONT) }},
		{reason: "PodNotRunning", wantText: "which does not run: ", object: []string{"dns", "server", "--from", "pod/waits"},
			setUp: func() { c.apply(podManifest("waits", shell("sleep 1000", ""), `"nodeSelector": {"disk": "gold"}`)) }},
	}
}

// TestNamesOfTheOutside follows the machine's name servers: as they change, disappear, fail, and lead back to the cluster.
func TestNamesOfTheOutside(t *testing.T) {
	c := newClusterWithServices(t)
	first, second, looping := startNameServer(t, "127.0.0.81"), startNameServer(t, "127.0.0.82"), startNameServer(t, "127.0.0.83")
	resolvConf := t.TempDir() + "/resolv.conf"
	write := func(content string) { require.NoError(t, os.WriteFile(resolvConf, []byte(content), 0o600)) }
	write("nameserver " + first.address + "\n")
	c.up("--unsafe-no-fsync", "--resolv-conf", resolvConf)
	importShell(t, c)
	c.mustRun("kubectl", "create", "service", "clusterip", "steady", "--tcp=80")
	resolvesTo := func(name, want string) {
		t.Helper()
		var got []string
		var err error
		require.NoError(t, c.poll(func(ctx context.Context) bool {
			got, err = c.resolver().LookupHost(ctx, name)
			if want == "" {
				return err != nil
			}
			return err == nil && len(got) == 1 && got[0] == want
		}), "%s resolves to %v, %v", name, got, err)
	}
	resolvesTo("outside.example.", "192.0.2.7")
	steady := strings.TrimSpace(c.mustRun("kubectl", "get", "service", "steady", "-o", "jsonpath={.spec.clusterIP}"))
	resolvesTo("steady.default.svc.cluster.local.", steady) // the DNS sees a new Service a moment after the API server

	// Names of the cluster resolve all the time, whatever happens to those of the outside.
	ctx, cancel := context.WithCancel(t.Context())
	var failures []string
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			if _, err := c.resolver().LookupHost(ctx, "steady.default.svc.cluster.local."); err != nil && ctx.Err() == nil {
				failures = append(failures, err.Error())
			}
		}
	})
	second.set("outside.example.", [4]byte{192, 0, 2, 8})
	write("nameserver " + second.address + "\n")
	resolvesTo("outside.example.", "192.0.2.8")
	second.set("late.example.", [4]byte{192, 0, 2, 9})
	resolvesTo("late.example.", "192.0.2.9")
	write("")
	resolvesTo("outside.example.", "")
	require.NoError(t, os.Remove(resolvConf))
	write("nameserver " + first.address + "\n")
	resolvesTo("outside.example.", "192.0.2.7")
	cancel()
	watching.Wait()
	require.Empty(t, failures)

	t.Run("Pods with the machine's servers", func(t *testing.T) {
		// The server is on the machine's loopback, which only the cluster's DNS reaches.
		c.apply(podManifest("plain", shell("cat /etc/resolv.conf; nslookup outside.example", ""), `"dnsPolicy": "Default", "restartPolicy": "Never"`))
		c.waitPod("name=plain", "finished", finished)
		log := c.mustRun("kubectl", "logs", "plain")
		require.Contains(t, log, "nameserver "+c.gateway())
		require.Contains(t, log, "192.0.2.7")
	})
	t.Run("a loop", func(t *testing.T) {
		looping.forwardTo(c.gateway())
		write("nameserver " + looping.address + "\n")
		c.out.waitFor(t, "lead back to the cluster's own DNS", c.ended)
		resolvesTo("steady.default.svc.cluster.local.", steady)
		write("nameserver " + first.address + "\n")
		resolvesTo("outside.example.", "192.0.2.7")
	})
	c.stop()
	require.Empty(t, c.leftovers())
}
