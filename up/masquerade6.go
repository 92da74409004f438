package up

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// masquerade6 is the table that makes the Pods' IPv6 connections to other networks than that of the Pods of all nodes leave with
// the machine's own address. Writing it again replaces it.
const masquerade6 = `
add table ip6 %[1]s
delete table ip6 %[1]s
table ip6 %[1]s {
	chain postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		ip6 saddr %[2]s oifname != "%[1]s" ip6 daddr != { %[3]s, ff00::/8 } masquerade
	}
}
`

// installMasquerade6 writes the table if Pods have IPv6 addresses.
func (l Layout) installMasquerade6(ctx context.Context) error {
	if !l.Pods6.IsValid() {
		return l.removeMasquerade6(ctx) // of an earlier run
	}
	cluster, err := parsePodNetworks(l.PodCIDR)
	if err != nil {
		return err
	}
	if err := runNFT(ctx, fmt.Sprintf(masquerade6, l.Bridge(), l.Pods6, cluster.v6)); err != nil {
		return fmt.Errorf("masquerade %s: %w", l.Pods6, err)
	}
	return nil
}

// removeMasquerade6 removes the table; it does nothing if there is none.
func (l Layout) removeMasquerade6(ctx context.Context) error {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil //nolint:nilerr // without it the table cannot have been written
	}
	tables, err := listTables(ctx)
	if err != nil || !tables[nftTable{"ip6", l.Bridge()}] {
		return nil //nolint:nilerr // a kernel without nftables has no table
	}
	if err := runNFT(ctx, "delete table ip6 "+l.Bridge()+"\n"); err != nil {
		return fmt.Errorf("remove the rules for the Pods' IPv6 connections: %w", err)
	}
	return nil
}

func runNFT(ctx context.Context, script string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("nft: %w: %s", err, bytes.TrimSpace(out)))
	}
	return nil
}
