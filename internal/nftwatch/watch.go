package nftwatch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// groupTables is the multicast group of the kernel's events of nf_tables (NFNLGRP_NFTABLES).
const groupTables = 7

// Attributes of messages about tables, chains and rules: the first one is the table in all of them.
const (
	attributeTable     = 1
	attributeRuleChain = 2
	attributeChainName = 3
)

// headerSize is the size of the header of nfnetlink messages, after that of netlink.
const headerSize = 4

// Change is the deletion of a table, a chain, or rules of a chain, or that rules were added to one.
type Change struct {
	// Added says that rules were added, to the end of the chain or elsewhere.
	Added bool
	// Family is that of the table, one of NFPROTO_*.
	Family uint8
	// Table is the table's name.
	Table string
	// Chain is the name of the chain that was deleted, or whose rules were changed; empty if the whole table was deleted.
	Chain string
}

// Watch calls changed after each change that concerns the caller, until ctx ends; several at once are one call. It calls started when
// it watches: what was changed before is not reported. Both are called in turn, and must not block.
func Watch(ctx context.Context, concerns func(Change) bool, started, changed func()) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("watch nf_tables: %w", err)
	}
	socket := os.NewFile(uintptr(fd), "nf_tables events")
	defer socket.Close()
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (groupTables - 1)}); err != nil {
		return fmt.Errorf("watch nf_tables: %w", err)
	}
	defer context.AfterFunc(ctx, func() { socket.Close() })()
	started()
	buffer := make([]byte, 1<<16)
	for {
		n, err := socket.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // events were lost
			changed()
		case err != nil:
			return fmt.Errorf("watch nf_tables: %w", err)
		case anyConcerns(buffer[:n], concerns):
			changed()
		}
	}
}

// anyConcerns reports whether one of the netlink messages is a change that concerns the caller.
func anyConcerns(messages []byte, concerns func(Change) bool) bool {
	for len(messages) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(messages))
		if size < unix.SizeofNlMsghdr || size > len(messages) {
			return false
		}
		if kind := binary.NativeEndian.Uint16(messages[4:]); kind>>8 == unix.NFNL_SUBSYS_NFTABLES {
			if one, ok := parse(int(kind&0xff), messages[unix.SizeofNlMsghdr:size]); ok && concerns(one) {
				return true
			}
		}
		messages = messages[min(align(size), len(messages)):]
	}
	return false
}

// parse reads a message of nf_tables; ok says that it is about a change as Change has it.
func parse(kind int, body []byte) (one Change, ok bool) {
	nameAttribute := 0
	switch kind {
	case unix.NFT_MSG_DELTABLE:
	case unix.NFT_MSG_DELCHAIN:
		nameAttribute = attributeChainName
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		nameAttribute = attributeRuleChain
		one.Added = kind == unix.NFT_MSG_NEWRULE
	default:
		return one, false
	}
	if len(body) < headerSize {
		return one, false
	}
	one.Family = body[0]
	for rest := body[headerSize:]; len(rest) >= unix.SizeofNlAttr; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < unix.SizeofNlAttr || size > len(rest) {
			break
		}
		value := strings.TrimRight(string(rest[unix.SizeofNlAttr:size]), "\x00")
		switch int(binary.NativeEndian.Uint16(rest[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)) {
		case attributeTable:
			one.Table = value
		case nameAttribute:
			one.Chain = value
		}
		rest = rest[min(align(size), len(rest)):]
	}
	// Chains without a name are parts of others.
	return one, one.Table != "" && (nameAttribute == 0 || one.Chain != "")
}

// align rounds up to the alignment of netlink.
func align(size int) int { return (size + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
