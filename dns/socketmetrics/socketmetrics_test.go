package socketmetrics_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/miekg/dns"

	_ "github.com/coredns/coredns/plugin/hosts"

	"github.com/berth-dev/berth/dns/socketmetrics"
)

// start starts a CoreDNS with the directives and returns its address.
func start(t *testing.T, directives string) (*caddy.Instance, string, error) {
	t.Helper()
	dnsserver.Directives = []string{socketmetrics.Name, "hosts"}
	instance, err := caddy.Start(caddy.CaddyfileInput{
		Contents:       []byte(".:0 {\n" + directives + "\nhosts {\n192.0.2.1 one.example\n}\n}\n"),
		ServerTypeName: "dns", Filepath: "Corefile",
	})
	if err != nil {
		return nil, "", err
	}
	for _, server := range instance.Servers() {
		if address := server.LocalAddr(); address != nil {
			return instance, address.String(), nil
		}
	}
	return instance, "", fmt.Errorf("the server has no address")
}

// read returns the metrics on the socket.
func read(t *testing.T, socket string) string {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", socket)
	}}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://dns/metrics", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestRequestsAreCountedOnTheSocket(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(socket, nil, 0o644); err != nil { // as of a killed process
		t.Fatal(err)
	}
	instance, address, err := start(t, socketmetrics.Name+" "+socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		instance.ShutdownCallbacks()
		if err := instance.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(socket); !os.IsNotExist(err) {
			t.Errorf("the socket stays: %v", err)
		}
	}()
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("the socket: %v, %v", info, err)
	}
	query := new(dns.Msg)
	query.SetQuestion("one.example.", dns.TypeA)
	reply, err := dns.Exchange(query, address)
	if err != nil || len(reply.Answer) != 1 {
		t.Fatalf("the reply: %v, %v", reply, err)
	}
	text := read(t, socket)
	limit := time.Now().Add(time.Minute)
	for time.Now().Before(limit) && !strings.Contains(text, `coredns_dns_requests_total{family="`) { // it counts after its reply
		text = read(t, socket)
	}
	if !strings.Contains(text, `coredns_dns_requests_total{family="`) || !strings.Contains(text, "process_cpu_seconds_total") {
		t.Fatalf("the metrics:\n%s", text)
	}
	restarted, err := instance.Restart(caddy.CaddyfileInput{
		Contents: []byte(".:0 {\n" + socketmetrics.Name + " " + socket + "\n}\n"), ServerTypeName: "dns", Filepath: "Corefile",
	})
	if err != nil {
		t.Fatal(err)
	}
	instance = restarted
	read(t, socket)
}

func TestTheSocketIsRequired(t *testing.T) {
	for _, directives := range []string{socketmetrics.Name, socketmetrics.Name + " a b", socketmetrics.Name + " /none/s"} {
		if instance, _, err := start(t, directives); err == nil {
			_ = instance.Stop()
			t.Errorf("%q starts", directives)
		}
	}
}
