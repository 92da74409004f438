package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const (
	// asDNS makes the test's program berth-dns.
	asDNS       = "BERTH_TEST_AS_DNS"
	testTimeout = 2 * time.Minute
)

func TestMain(m *testing.M) {
	if os.Getenv(asDNS) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestLoopsAreFoundAfterReloads reloads servers with a configuration that forwards to a name server which leads back to them. The
// instance before, which resolves everything, must not take the query that finds the loop.
func TestLoopsAreFoundAfterReloads(t *testing.T) {
	for i := range 5 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			good := startNameServer(t, func(w dns.ResponseWriter, r *dns.Msg) { _ = w.WriteMsg(new(dns.Msg).SetReply(r)) })
			server := startServer(t, good)
			looping := startNameServer(t, func(w dns.ResponseWriter, r *dns.Msg) {
				if response, err := dns.Exchange(r, server.address); err == nil {
					_ = w.WriteMsg(response)
				}
			})
			server.waitResponse(t)
			server.reload(t, looping)
			select {
			case <-server.ended:
			case <-time.After(testTimeout):
				t.Fatalf("no loop was found; the server printed:\n%s", server.out.String())
			}
			if !strings.Contains(server.out.String(), "plugin/loop: Loop") {
				t.Fatalf("the server ended for another reason; it printed:\n%s", server.out.String())
			}
		})
	}
}

// server is berth-dns with a port of an address of its own.
type server struct {
	address, config string
	cmd             *exec.Cmd
	out             *output
	ended           chan struct{}
}

// startServer starts berth-dns, which forwards to the name server.
func startServer(t *testing.T, forward string) *server {
	t.Helper()
	s := &server{
		address: net.JoinHostPort(loopback(), "5353"), config: filepath.Join(t.TempDir(), "Corefile"), out: new(output), ended: make(chan struct{}),
	}
	s.write(t, forward)
	s.cmd = exec.Command(os.Args[0], "-conf", s.config)
	s.cmd.Env, s.cmd.Stdout, s.cmd.Stderr = append(os.Environ(), asDNS+"=1"), s.out, s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { defer close(s.ended); _ = s.cmd.Wait() }()
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); <-s.ended })
	return s
}

func (s *server) write(t *testing.T, forward string) {
	t.Helper()
	host, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(".:%s {\n bind %s\n loop\n forward . %s\n}\n", port, host, forward)
	if err := os.WriteFile(s.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (s *server) reload(t *testing.T, forward string) {
	t.Helper()
	s.write(t, forward)
	// A server that responds need not have asked for the signal yet: it does that in a goroutine, and Go ignores the signal until then.
	const again = 100 // attempts to see the signal's effect before it is sent again
	attempts := 0
	s.await(t, "reload", func() bool {
		if attempts++; attempts%again == 1 {
			if err := s.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
		}
		return strings.Contains(s.out.String(), "SIGUSR1: Reloading")
	})
}

// waitResponse waits until the server has started and responds.
func (s *server) waitResponse(t *testing.T) {
	t.Helper()
	s.await(t, "respond", func() bool {
		response, err := dns.Exchange(new(dns.Msg).SetQuestion("outside.example.", dns.TypeA), s.address)
		return err == nil && response.Rcode == dns.RcodeSuccess && strings.Contains(s.out.String(), runtime.GOOS+"/") // its last line
	})
}

// await waits until the server has done what it is to do.
func (s *server) await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for began := time.Now(); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > testTimeout {
			t.Fatalf("the server does not %s; it printed:\n%s", what, s.out.String())
		}
	}
}

// startNameServer starts a name server and returns its address.
func startNameServer(t *testing.T, respond dns.HandlerFunc) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", net.JoinHostPort(loopback(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: conn, Handler: respond}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = conn.Close(); <-ended })
	return conn.LocalAddr().String()
}

// loopback returns one of the many addresses of the machine's loopback.
func loopback() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

// output is what a process has printed.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(data)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}
