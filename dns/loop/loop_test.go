package loop

import (
	"fmt"
	"testing"

	"github.com/coredns/coredns/plugin/pkg/dnstest"
	"github.com/coredns/coredns/plugin/test"
	"github.com/miekg/dns"
)

// TestQueriesThatComeBack passes queries again and again, as a loop does.
func TestQueriesThatComeBack(t *testing.T) {
	var found string
	l := &Loop{next: test.NextHandler(dns.RcodeSuccess, nil), zone: ".", fatal: func(format string, arguments ...any) {
		found = fmt.Sprintf(format, arguments...)
	}}
	pass := func(name string, kind uint16, times int) {
		for range times {
			code, err := l.ServeDNS(t.Context(), dnstest.NewRecorder(&test.ResponseWriter{}), new(dns.Msg).SetQuestion(name, kind))
			if err != nil || code != dns.RcodeSuccess {
				t.Fatalf("query for %s: code %d, error %v", name, code, err)
			}
		}
	}
	pass("a.b.", queryType, 10)
	l.expect("a.b.")
	pass("a.b.", dns.TypeA, 10)
	pass("b.a.", queryType, 10)
	pass("a.b.", queryType, seenLimit)
	l.expect("c.d.") // the next query
	pass("a.b.", queryType, 10)
	pass("c.d.", queryType, seenLimit)
	if found != "" {
		t.Fatalf("found a loop that is none: %s", found)
	}
	pass("C.d.", queryType, 1)
	if want := `Loop: a query for a name of zone "." that was forwarded came back from 10.240.0.1`; found != want {
		t.Fatalf("found %q, want %q", found, want)
	}
}
