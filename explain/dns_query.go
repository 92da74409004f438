package explain

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
)

// dnsServiceName is the Service of the cluster's DNS, in kube-system.
const dnsServiceName = "kube-dns"

const (
	typeA    = dnsmessage.TypeA
	typeAAAA = dnsmessage.TypeAAAA
)

// reply is what a name server responded to one question.
type reply struct {
	name, server  string
	kind          dnsmessage.Type
	code          dnsmessage.RCode
	authoritative bool
	addresses     []string
	aliases       []string
	took          time.Duration
	err           error
}

// question is the question as dig writes it: "A web.default.svc.cluster.local."
func (r *reply) question() string { return strings.TrimPrefix(r.kind.String(), "Type") + " " + r.name }

// outcome describes the reply in a few words.
func (r *reply) outcome() string {
	took := fmt.Sprintf(" (%.1f ms)", millis(r.took))
	switch {
	case r.err != nil:
		return r.err.Error()
	case r.code != dnsmessage.RCodeSuccess:
		return codeText(r.code) + took
	case len(r.addresses) > 0 && len(r.aliases) > 0:
		return strings.Join(r.aliases, " is ") + " is " + strings.Join(r.addresses, ", ") + took
	case len(r.addresses) > 0:
		return strings.Join(r.addresses, ", ") + took
	case len(r.aliases) > 0:
		return "alias of " + strings.Join(r.aliases, ", ") + ", without an address" + took
	}
	return "the name exists, without such a record" + took
}

// codeText is the usual name of a response code.
func codeText(code dnsmessage.RCode) string {
	switch code {
	case dnsmessage.RCodeNameError:
		return "NXDOMAIN: no such name"
	case dnsmessage.RCodeServerFailure:
		return "SERVFAIL: the server failed to find out"
	case dnsmessage.RCodeRefused:
		return "REFUSED: the server does not resolve such names"
	}
	return strings.TrimPrefix(code.String(), "RCode")
}

// queryType is the type of the addresses that the Service has.
func queryType(service *corev1.Service) dnsmessage.Type {
	if len(service.Spec.IPFamilies) > 0 && service.Spec.IPFamilies[0] == corev1.IPv6Protocol {
		return typeAAAA
	}
	return typeA
}

// query sends one question to a name server, from the Pod's network or, if it is nil, the node's: by UDP, and by TCP if the
// response is too long for that.
func (q *builder) query(ctx context.Context, pod *corev1.Pod, server, name string, kind dnsmessage.Type) *reply {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	r := &reply{name: name, server: server, kind: kind}
	began := time.Now()
	message, id, err := newQuestion(name, kind)
	if err != nil {
		r.err = err
		return r
	}
	for _, network := range []string{"udp", "tcp"} {
		var response dnsmessage.Message
		response, r.err = q.exchange(ctx, pod, network, server, message, id)
		r.took = time.Since(began)
		if r.err != nil {
			r.err = explainTimeout(r.err, server)
			return r
		}
		if response.Truncated && network == "udp" {
			continue
		}
		r.read(&response)
		return r
	}
	return r
}

// explainTimeout replaces an error that only says that time ran out.
func explainTimeout(err error, server string) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no response from %s within %s", server, probeTimeout)
	}
	return err
}

func newQuestion(name string, kind dnsmessage.Type) (message []byte, id uint16, err error) {
	parsed, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, 0, fmt.Errorf("%q is no name: %w", name, err)
	}
	id = uint16(rand.Uint32())
	question := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: parsed, Type: kind, Class: dnsmessage.ClassINET}},
	}
	message, err = question.Pack()
	if err != nil {
		return nil, 0, fmt.Errorf("%q is no name: %w", name, err)
	}
	return message, id, nil
}

// exchange sends a message and reads the response to it.
func (q *builder) exchange(ctx context.Context, pod *corev1.Pod, network, server string, message []byte, id uint16) (dnsmessage.Message, error) {
	var response dnsmessage.Message
	conn, err := q.src.Network.Dial(ctx, pod, network, net.JoinHostPort(server, "53"))
	if err != nil {
		return response, err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return response, err
		}
	}
	if network == "tcp" {
		message = append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...)
	}
	if _, err := conn.Write(message); err != nil {
		return response, err
	}
	buffer := make([]byte, 1<<16)
	for {
		n, err := readMessage(conn, network, buffer)
		if err != nil {
			return response, err
		}
		if err := response.Unpack(buffer[:n]); err != nil {
			return response, fmt.Errorf("%s sent what is no DNS message: %w", server, err)
		}
		if response.ID == id {
			return response, nil
		}
	}
}

func readMessage(conn net.Conn, network string, buffer []byte) (int, error) {
	if network == "udp" {
		return conn.Read(buffer)
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return 0, err
	}
	return io.ReadFull(conn, buffer[:binary.BigEndian.Uint16(length[:])])
}

// escaped returns a name of a message, whose labels may have any bytes, with those escaped that would control a terminal.
func escaped(name string) string {
	return strings.Trim(strconv.QuoteToASCII(name), `"`)
}

// read copies what matters from the message.
func (r *reply) read(message *dnsmessage.Message) {
	r.code, r.authoritative = message.RCode, message.Authoritative
	for _, record := range message.Answers {
		switch body := record.Body.(type) {
		case *dnsmessage.AResource:
			r.addresses = append(r.addresses, net.IP(body.A[:]).String())
		case *dnsmessage.AAAAResource:
			r.addresses = append(r.addresses, net.IP(body.AAAA[:]).String())
		case *dnsmessage.CNAMEResource:
			r.aliases = append(r.aliases, escaped(body.CNAME.String()))
		}
	}
}
