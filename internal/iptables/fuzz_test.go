package iptables

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzChains reads arbitrary lists of iptables, which other programs' rules and comments are in: positions are those of rules, and a chain that
// only drops may drop.
func FuzzChains(f *testing.F) {
	f.Add("-P INPUT ACCEPT\n-A INPUT -i br0 -j ACCEPT\n-A INPUT -j ufw\n-A ufw -j LOG --log-prefix \"x -j DROP\"\n-A ufw -j REJECT --reject-with icmp\n")
	f.Add("-A INPUT -m comment --comment \"a \\\" -j x\" -j DROP\n")
	f.Add("-A INPUT -j a\n-A a -j b\n-A b -j a\n")
	f.Add("-A INPUT -g INPUT\n-A INPUT -j INPUT\n")
	f.Fuzz(func(t *testing.T, listed string) {
		have := parseChains(listed)
		rule := Rule{Chain: Chain{Table: "filter", Name: "INPUT"}, Match: []string{"-i", "br0", "-j", "ACCEPT"}}
		has, rest := have.positions(rule)
		for _, position := range []int{has, rest} {
			require.LessOrEqual(t, position, len(have["INPUT"]))
			require.GreaterOrEqual(t, position, 0)
		}
		if has > 0 {
			require.Equal(t, "-A INPUT -i br0 -j ACCEPT", have["INPUT"][has-1])
		}
		if rest > 0 {
			require.True(t, have.mayDrop(have["INPUT"][rest-1]), have["INPUT"][rest-1])
		}
		have.mayDrop(have.between("INPUT", 0, 0)...)
	})
}
