package addressfilter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Table is the filter of one bridge.
type Table struct {
	// Bridge is the name of the bridge, and of the filter's nftables tables.
	Bridge string
	// IPv6 says that Pods have IPv6 addresses, too. Otherwise all that they send by IPv6 is dropped.
	IPv6 bool
}

// The sets of the table.
const (
	setPorts      = "ports"      // the bridge's ports that are restricted
	setCards      = "cards"      // port and hardware address
	setAddresses  = "addresses"  // port, hardware address and IPv4 address
	setAddresses6 = "addresses6" // port, hardware address and IPv6 address
	setTargets6   = "targets6"   // the same, compared with the address that a neighbour advertisement claims
)

// rules are the tables. Adding what exists changes nothing, so that the sets keep their elements; the chains are written anew.
const rules = `
add table bridge %[1]s
add set bridge %[1]s ports { type ifname; }
add set bridge %[1]s cards { type ifname . ether_addr; }
add set bridge %[1]s addresses { type ifname . ether_addr . ipv4_addr; }
add chain bridge %[1]s pod
add chain bridge %[1]s prerouting { type filter hook prerouting priority -300; policy accept; }
flush chain bridge %[1]s pod
flush chain bridge %[1]s prerouting
add rule bridge %[1]s prerouting iifname @ports jump pod
add rule bridge %[1]s pod iifname . ether saddr != @cards counter drop
add rule bridge %[1]s pod ip daddr 127.0.0.0/8 counter drop
add rule bridge %[1]s pod ether type ip iifname . ether saddr . ip saddr @addresses accept
add rule bridge %[1]s pod ether type arp iifname . arp saddr ether . arp saddr ip @addresses accept
add rule bridge %[1]s pod ether type arp arp operation request arp saddr ip 0.0.0.0 accept
add table ip %[1]s
add chain ip %[1]s prerouting { type filter hook prerouting priority -300; policy accept; }
flush chain ip %[1]s prerouting
add rule ip %[1]s prerouting iifname != "lo" ip daddr 127.0.0.0/8 counter drop
`

// rules6 let a Pod send by IPv6 from its own address, and what detects duplicate addresses. What it would send by its
// link-local address can only be about addresses of others. A neighbour advertisement has the claimed address 8 bytes (64
// bits) behind the header of ICMPv6; Pods are no routers.
const rules6 = `
add set bridge %[1]s addresses6 { type ifname . ether_addr . ipv6_addr; }
add set bridge %[1]s targets6 { typeof iifname . ether saddr . @th,64,128; }
add rule bridge %[1]s pod icmpv6 type { nd-router-advert, nd-redirect } counter drop
add rule bridge %[1]s pod icmpv6 type nd-neighbor-advert iifname . ether saddr . @th,64,128 != @targets6 counter drop
add rule bridge %[1]s pod ether type ip6 iifname . ether saddr . ip6 saddr @addresses6 accept
add rule bridge %[1]s pod ip6 saddr :: icmpv6 type nd-neighbor-solicit accept
`

// lastRule drops all that no rule has accepted.
const lastRule = "add rule bridge %[1]s pod counter drop\n"

// Install writes the rules. Pods that are in the sets stay in them. It fails if the machine has no program nft, or its kernel
// has no nftables for bridges.
func (t Table) Install(ctx context.Context) error {
	script := rules
	if t.IPv6 {
		script += rules6
	}
	if err := nft(ctx, fmt.Sprintf(script+lastRule, t.Bridge)); err != nil {
		return fmt.Errorf("keep the Pods on bridge %s to their own addresses: %w", t.Bridge, err)
	}
	return nil
}

// Remove removes the rules; it does nothing if there are none.
func (t Table) Remove(ctx context.Context) error {
	var script strings.Builder
	for _, family := range []string{"bridge", "ip"} { // adding a table first makes it no error that it does not exist
		fmt.Fprintf(&script, "add table %[1]s %[2]s\ndelete table %[1]s %[2]s\n", family, t.Bridge)
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return nil //nolint:nilerr // without it Install cannot have written any
	}
	if err := nft(ctx, script.String()); err != nil {
		return fmt.Errorf("remove the rules for the addresses of Pods on bridge %s: %w", t.Bridge, err)
	}
	return nil
}

func nft(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		first, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
		return errors.Join(fmt.Errorf("nft: %w: %s", err, first))
	}
	return nil
}
