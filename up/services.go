package up

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/internal/contain"
)

const (
	// serviceProbePeriod is how often a starting kube-proxy or DNS is asked whether it is ready: neither reports that.
	serviceProbePeriod = 20 * time.Millisecond
	// serviceProbeTimeout is the limit of one such request.
	serviceProbeTimeout = time.Second
)

// probe checks once whether a program is ready.
type probe func(ctx context.Context) bool

// withReadiness returns run with the lines that show its first start, and records when the probe first succeeds.
func (c *Cluster) withReadiness(name string, isReady probe, run runFunc) runFunc {
	ready := c.servicesReady[name]
	if ready == nil { // nothing waits for it
		return run
	}
	return func(ctx context.Context) error {
		select {
		case <-ready.done:
			return run(ctx) // it is a restart
		default:
		}
		c.progress.Starting(name)
		probing, cancel := context.WithCancel(ctx)
		probed := make(chan struct{})
		go func() {
			defer contain.Recover("up.withReadiness", "")
			defer close(probed)
			if c.waitProbe(probing, isReady) {
				c.progress.Ready(name, "")
				ready.set(nil)
			}
		}()
		err := run(ctx)
		cancel()
		<-probed
		if err != nil {
			ready.recordExit(err)
		}
		return err
	}
}

// waitProbe waits until the probe succeeds. It returns false if ctx ends first.
func (c *Cluster) waitProbe(ctx context.Context, isReady probe) bool {
	ticker := c.clock.NewTicker(serviceProbePeriod)
	defer ticker.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, serviceProbeTimeout)
		ready := isReady(limited)
		cancel()
		if ready {
			return true
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return false
		}
	}
}

// waitServices waits until kube-proxy and DNS are ready, or one of them fails for good, which its supervisor has reported.
func (c *Cluster) waitServices(ctx context.Context) error {
	return c.eachService(ctx, c.progress.Failed)
}

// eachService waits for kube-proxy and DNS, and calls failed for one that fails for good.
func (c *Cluster) eachService(ctx context.Context, failed func(name string, err error)) error {
	for name, ready := range c.servicesReady {
		if !c.runs(name) {
			continue
		}
		err := ready.wait(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			failed(name, err)
		}
	}
	return nil
}

// proxyReady returns the probe of kube-proxy: its metrics have the time of a sync of its rules. Its health is good before that.
func proxyReady(metrics string) probe {
	return func(ctx context.Context) bool {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metrics+"/metrics", http.NoBody)
		if err != nil {
			return false
		}
		request.Header.Set("Accept-Encoding", "identity") // to compress and to expand it needs more time than all the rest
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		defer response.Body.Close()
		for lines := bufio.NewScanner(response.Body); lines.Scan(); {
			fields := strings.Fields(lines.Text())
			if len(fields) == 2 && strings.HasPrefix(fields[0], "kubeproxy_sync_proxy_rules_last_timestamp_seconds") && fields[1] != "0" {
				return true
			}
		}
		return false
	}
}

// dnsReady returns the probe of the DNS server at an address: it resolves the name of a Service that every cluster has.
func dnsReady(server netip.Addr) probe {
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, net.JoinHostPort(server.String(), strconv.Itoa(dnsPort)))
	}}
	return func(ctx context.Context) bool {
		found, err := resolver.LookupHost(ctx, "kubernetes.default.svc."+clusterDomain+".")
		return err == nil && len(found) > 0
	}
}
