// Package loop is a plugin of CoreDNS that finds out whether the name servers to which it forwards lead back to it: it sends itself a
// query for a random name, and ends the process if the query comes back.
//
// CoreDNS's plugin of that name, whose place it takes, sends the query while an instance starts. After a reload the instance before
// may still read from the same port and resolve the query as it was configured, so that some loops are never found. This one
// waits until the instance before has stopped.
package loop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/dnsutil"
	"github.com/coredns/coredns/plugin/pkg/log"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"

	"github.com/berth-dev/berth/dns/contain"
)

const (
	name = "loop"
	// queryType is the type of the query, which hardly anybody else sends.
	queryType = dns.TypeHINFO
	// seenLimit is how often a query may pass: once when it is sent, and once more when the network repeats it.
	seenLimit = 2
	// probeTime is how long queries are sent until one has a response, and probePause the time between two of them.
	probeTime  = 30 * time.Second
	probePause = time.Second
)

var logger = log.NewWithPlugin(name)

func init() { plugin.Register(name, setup) }

// setup reads the directive and adds the plugin. It has no arguments.
func setup(c *caddy.Controller) error {
	for i := 0; c.Next(); i++ {
		if i > 0 {
			return plugin.Error(name, plugin.ErrOnce)
		}
		if c.NextArg() {
			return plugin.Error(name, c.ArgErr())
		}
	}
	config := dnsserver.GetConfig(c)
	l := &Loop{zone: config.Zone, fatal: logger.Fatalf}
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		l.next = next
		return l
	})
	ctx, stop := context.WithCancel(context.Background())
	c.OnShutdown(func() error {
		stop()
		return nil
	})
	// The event comes when this instance serves and, after a reload, the one before has stopped.
	caddy.RegisterEventHook(fmt.Sprintf("%s %p", name, l), func(event caddy.EventName, _ any) error {
		if event == caddy.InstanceStartupEvent {
			go contain.Guard("loop.probe", func() { l.probe(ctx, address(config)) })()
		}
		return nil
	})
	return nil
}

// address returns an address at which the server of the configuration listens.
func address(config *dnsserver.Config) string {
	host := ""
	if len(config.ListenHosts) > 0 {
		host = config.ListenHosts[0]
	}
	return net.JoinHostPort(host, config.Port)
}

// Loop passes all queries on and counts its own.
type Loop struct {
	next  plugin.Handler
	zone  string
	fatal func(format string, arguments ...any) // ends the process

	mu sync.Mutex // guards all below
	// query is the name that is asked for now, empty for none, and seen is how often the query for it has passed.
	query string
	seen  int
}

var _ plugin.Handler = (*Loop)(nil)

// Name implements plugin.Handler.
func (l *Loop) Name() string { return name }

// ServeDNS implements plugin.Handler.
func (l *Loop) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	if state := (request.Request{W: w, Req: r}); state.QType() == queryType && l.count(state.Name()) > seenLimit {
		l.fatal("Loop: a query for a name of zone %q that was forwarded came back from %s", l.zone, state.IP())
	}
	return plugin.NextOrFailure(name, l.next, ctx, w, r)
}

// count counts a query and returns how often it has passed; 0 for the queries of others.
func (l *Loop) count(query string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.query == "" || !strings.EqualFold(query, l.query) {
		return 0
	}
	l.seen++
	return l.seen
}

// expect has the query for the name counted, or none for an empty one.
func (l *Loop) expect(query string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.query, l.seen = query, 0
}

// probe sends queries to the address, each for another name, until one has a response, which none has that goes round in a loop.
func (l *Loop) probe(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	defer l.expect("")
	pause := time.NewTicker(probePause)
	defer pause.Stop()
	for ctx.Err() == nil {
		query := dnsutil.Join(fmt.Sprintf("%x", rand.Uint64()), fmt.Sprintf("%x", rand.Uint64()), l.zone)
		l.expect(query)
		if _, err := dns.ExchangeContext(ctx, new(dns.Msg).SetQuestion(query, queryType), address); err == nil {
			return
		}
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
	}
}
