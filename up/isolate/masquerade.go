package isolate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// masquerade is a table of nftables that gives packets from a cluster's link the machine's own address. It belongs to a
// netlink socket: the kernel removes it when that is closed, also by the end of the process. Neither the program nft nor a
// library creates such tables, so this file writes the messages.
type masquerade struct {
	socket int
	name   string
	family uint8 // NFPROTO_IPV4 or NFPROTO_IPV6
	// owned says that the table belongs to the socket. Kernels before 5.12 cannot do that: then close removes the table.
	owned bool
}

// tableOwned is the flag NFT_TABLE_F_OWNER.
const tableOwned = 2

// newMasquerade creates the table for the link with the name, whose inner end has the address.
func newMasquerade(name string, inside netip.Addr) (*masquerade, error) {
	m, err := createMasquerade(name, inside, true)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		m, err = createMasquerade(name, inside, false)
	}
	if err != nil {
		return nil, fmt.Errorf("masquerade the cluster's link by nftables (kernel modules nf_tables, nft_chain_nat and nft_masq): %w", err)
	}
	return m, nil
}

// createMasquerade opens a socket to the firewall and creates the table, which belongs to the socket if it is owned.
func createMasquerade(name string, inside netip.Addr, owned bool) (*masquerade, error) {
	m, err := openMasquerade(name, owned)
	if err != nil {
		return nil, err
	}
	if inside.Is6() {
		m.family = unix.NFPROTO_IPV6
	}
	rules := m.rules(inside)
	if !owned {
		// An earlier run that was killed may have left the table. Adding it first makes it no error that it does not exist.
		rules = slices.Concat(rules[:1], []message{m.deletion()}, rules)
	}
	if err := m.send(rules...); err != nil {
		return nil, errors.Join(err, unix.Close(m.socket))
	}
	return m, nil
}

// openMasquerade opens a socket to the firewall.
func openMasquerade(name string, owned bool) (*masquerade, error) {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	// The kernel replies at once; without a limit a missing reply would stop the start.
	limit := unix.NsecToTimeval(int64(10 * time.Second))
	err = errors.Join(unix.Bind(socket, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	if err != nil {
		return nil, errors.Join(err, unix.Close(socket))
	}
	return &masquerade{socket: socket, name: name, family: unix.NFPROTO_IPV4, owned: owned}, nil
}

// close removes the table.
func (m *masquerade) close() {
	if !m.owned {
		_ = m.send(m.deletion()) // nothing uses the rules any more
	}
	_ = unix.Close(m.socket)
}

// message is a request to nftables. Its type is one of NFT_MSG_*.
type message struct {
	kind, flags int
	attributes  []*nl.RtAttr
}

// rules are the messages that create the table, a chain for source addresses in it, and the rule: what comes from the inner
// address and does not leave through the link gets the address of the interface that it leaves through.
func (m *masquerade) rules(inside netip.Addr) []message {
	flags := uint32(0)
	if m.owned {
		flags = tableOwned
	}
	table, chain := text(m.name), text("postrouting")
	hook := nested(unix.NFTA_CHAIN_HOOK,
		number(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_POST_ROUTING), number(unix.NFTA_HOOK_PRIORITY, 100)) // 100: srcnat
	source := make([]byte, unix.IFNAMSIZ)
	copy(source, m.name)
	const register = unix.NFT_REG_1
	sourceOffset, addressBytes := uint32(12), uint32(4) // in the header of IPv4
	if inside.Is6() {
		sourceOffset, addressBytes = 8, 16
	}
	expressions := nested(unix.NFTA_RULE_EXPRESSIONS,
		expression("payload", number(unix.NFTA_PAYLOAD_DREG, register), number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER),
			number(unix.NFTA_PAYLOAD_OFFSET, sourceOffset), number(unix.NFTA_PAYLOAD_LEN, addressBytes)),
		expression("cmp", number(unix.NFTA_CMP_SREG, register), number(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ),
			nested(unix.NFTA_CMP_DATA, nl.NewRtAttr(unix.NFTA_DATA_VALUE, inside.AsSlice()))),
		expression("meta", number(unix.NFTA_META_DREG, register), number(unix.NFTA_META_KEY, unix.NFT_META_OIFNAME)),
		expression("cmp", number(unix.NFTA_CMP_SREG, register), number(unix.NFTA_CMP_OP, unix.NFT_CMP_NEQ),
			nested(unix.NFTA_CMP_DATA, nl.NewRtAttr(unix.NFTA_DATA_VALUE, source))),
		expression("masq"),
	)
	return []message{
		{unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, []*nl.RtAttr{
			nl.NewRtAttr(unix.NFTA_TABLE_NAME, table), number(unix.NFTA_TABLE_FLAGS, flags)}},
		{unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, []*nl.RtAttr{
			nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, table), nl.NewRtAttr(unix.NFTA_CHAIN_NAME, chain), hook,
			nl.NewRtAttr(unix.NFTA_CHAIN_TYPE, text("nat"))}},
		{unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE | unix.NLM_F_APPEND, []*nl.RtAttr{
			nl.NewRtAttr(unix.NFTA_RULE_TABLE, table), nl.NewRtAttr(unix.NFTA_RULE_CHAIN, chain), expressions}},
	}
}

func (m *masquerade) deletion() message {
	return message{unix.NFT_MSG_DELTABLE, 0, []*nl.RtAttr{nl.NewRtAttr(unix.NFTA_TABLE_NAME, text(m.name))}}
}

// send sends the messages as one transaction and waits for its outcome.
func (m *masquerade) send(messages ...message) error {
	whole := subsystem{resource: unix.NFNL_SUBSYS_NFTABLES}
	batch := newRequest(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, whole).Serialize()
	for i, message := range messages {
		request := newRequest(unix.NFNL_SUBSYS_NFTABLES<<8|message.kind, message.flags|unix.NLM_F_ACK, i+1,
			subsystem{family: m.family})
		for _, attribute := range message.attributes {
			request.AddData(attribute)
		}
		batch = append(batch, request.Serialize()...)
	}
	batch = append(batch, newRequest(unix.NFNL_MSG_BATCH_END, 0, len(messages)+1, whole).Serialize()...)
	if err := unix.Sendto(m.socket, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	return m.receive(len(messages))
}

// receive reads an acknowledgement for each of count messages. The first error ends it: the transaction has failed.
func (m *masquerade) receive(count int) error {
	buffer := make([]byte, 64<<10)
	for count > 0 {
		n, _, err := unix.Recvfrom(m.socket, buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read the kernel's reply: %w", err)
		}
		replies, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return fmt.Errorf("parse the kernel's reply: %w", err)
		}
		for _, reply := range replies {
			if reply.Header.Type != unix.NLMSG_ERROR || len(reply.Data) < 4 {
				continue
			}
			if code := -int32(nl.NativeEndian().Uint32(reply.Data)); code != 0 {
				return unix.Errno(code)
			}
			count--
		}
	}
	return nil
}

// subsystem is the header of a netfilter message (struct nfgenmsg).
type subsystem struct {
	family   uint8
	resource uint16
}

// Len implements nl.NetlinkRequestData.
func (s subsystem) Len() int { return 4 }

// Serialize implements nl.NetlinkRequestData.
func (s subsystem) Serialize() []byte {
	return binary.BigEndian.AppendUint16([]byte{s.family, unix.NFNETLINK_V0}, s.resource)
}

func newRequest(kind, flags, sequence int, of subsystem) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(kind, flags)
	request.Seq = uint32(sequence)
	request.AddData(of)
	return request
}

func text(s string) []byte { return append([]byte(s), 0) }

func number(kind int, value uint32) *nl.RtAttr {
	return nl.NewRtAttr(kind, binary.BigEndian.AppendUint32(nil, value))
}

func nested(kind int, attributes ...*nl.RtAttr) *nl.RtAttr {
	parent := nl.NewRtAttr(kind|unix.NLA_F_NESTED, nil)
	for _, attribute := range attributes {
		parent.AddChild(attribute)
	}
	return parent
}

// expression is an element of a rule.
func expression(name string, attributes ...*nl.RtAttr) *nl.RtAttr {
	parts := []*nl.RtAttr{nl.NewRtAttr(unix.NFTA_EXPR_NAME, text(name))}
	if len(attributes) > 0 {
		parts = append(parts, nested(unix.NFTA_EXPR_DATA, attributes...))
	}
	return nested(unix.NFTA_LIST_ELEM, parts...)
}
