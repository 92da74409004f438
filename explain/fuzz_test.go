package explain

import (
	"net"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
)

// FuzzReply reads an arbitrary response of a name server: it is described in one line that does not control the terminal, and addresses are such.
func FuzzReply(f *testing.F) {
	name := dnsmessage.MustNewName("web.default.svc.cluster.local.")
	add := func(code dnsmessage.RCode, answers ...dnsmessage.ResourceBody) {
		message := dnsmessage.Message{Header: dnsmessage.Header{ID: 1, Response: true, RCode: code}}
		for _, body := range answers {
			message.Answers = append(message.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET}, Body: body})
		}
		data, err := message.Pack()
		require.NoError(f, err)
		f.Add(data)
	}
	add(dnsmessage.RCodeSuccess, &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}, &dnsmessage.AAAAResource{AAAA: [16]byte{0x20, 1}})
	add(dnsmessage.RCodeNameError)
	add(dnsmessage.RCode(4000), &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName("a\x1b[2J\n.example.")})
	f.Fuzz(func(t *testing.T, data []byte) {
		var message dnsmessage.Message
		if message.Unpack(data) != nil {
			return
		}
		r := &reply{name: name.String(), server: "192.0.2.53", kind: typeA}
		r.read(&message)
		require.LessOrEqual(t, len(r.addresses)+len(r.aliases), len(message.Answers))
		for _, address := range r.addresses {
			require.NotNil(t, net.ParseIP(address))
		}
		outcome := r.outcome()
		require.NotEmpty(t, outcome)
		require.False(t, strings.ContainsFunc(outcome, unicode.IsControl), "%q", outcome)
	})
}
