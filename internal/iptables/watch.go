package iptables

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
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

// watchTables implements Deps.Watch.
func (k *Keeper) watchTables(ctx context.Context, changed func()) error {
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
	changed() // what was deleted before the watch
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
		case anyDeleted(buffer[:n], k.config.concerns):
			changed()
		}
	}
}

// anyDeleted reports whether one of the netlink messages is the deletion of a table, a chain or rules that concerns those to keep.
func anyDeleted(messages []byte, concerns concerns) bool {
	for len(messages) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(messages))
		if size < unix.SizeofNlMsghdr || size > len(messages) {
			return false
		}
		if kind := binary.NativeEndian.Uint16(messages[4:]); kind>>8 == unix.NFNL_SUBSYS_NFTABLES &&
			deletes(int(kind&0xff), messages[unix.SizeofNlMsghdr:size], concerns) {
			return true
		}
		messages = messages[min(align(size), len(messages)):]
	}
	return false
}

func deletes(kind int, body []byte, concerns concerns) bool {
	nameAttribute := 0
	switch kind {
	case unix.NFT_MSG_DELTABLE:
	case unix.NFT_MSG_DELCHAIN:
		nameAttribute = attributeChainName
	case unix.NFT_MSG_DELRULE:
		nameAttribute = attributeRuleChain
	default:
		return false
	}
	if len(body) < headerSize || body[0] != unix.AF_INET && body[0] != unix.AF_INET6 {
		return false
	}
	var table, name string
	for rest := body[headerSize:]; len(rest) >= unix.SizeofNlAttr; {
		size := int(binary.NativeEndian.Uint16(rest))
		if size < unix.SizeofNlAttr || size > len(rest) {
			break
		}
		value := strings.TrimRight(string(rest[unix.SizeofNlAttr:size]), "\x00")
		switch int(binary.NativeEndian.Uint16(rest[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)) {
		case attributeTable:
			table = value
		case nameAttribute:
			name = value
		}
		rest = rest[min(align(size), len(rest)):]
	}
	if nameAttribute != 0 && name == "" {
		return false // an unnamed chain
	}
	return concerns(body[0] == unix.AF_INET6, table, name)
}

// concerns reports whether the deletion of a chain, of rules of it, or, if its name is empty, of a whole table concerns what is kept.
type concerns func(ipv6 bool, table, name string) bool

func (c Config) concerns(ipv6 bool, table, name string) bool {
	rules := c.IPv4
	if ipv6 {
		rules = c.IPv6
	}
	matches := func(chain Chain) bool { return chain.Table == table && (name == "" || chain.Name == name) }
	return slices.ContainsFunc(rules.Chains, matches) || slices.ContainsFunc(rules.Rules, func(r Rule) bool { return matches(r.Chain) })
}

// align rounds up to the alignment of netlink.
func align(size int) int { return (size + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }
