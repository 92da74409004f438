package isolate

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testnet"
)

// TestRulesEndWithTheirSocket checks the rules as nft lists them.
func TestRulesEndWithTheirSocket(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("needs nft: ", err)
	}
	inside := netip.MustParseAddr("198.18.0.2")
	var rules, left []byte
	var m *masquerade
	var listErr error
	testnet.InNew(t, func() {
		if m, err = newMasquerade("berth01234567", inside); err != nil {
			return
		}
		rules, listErr = exec.Command(nft, "list", "ruleset").CombinedOutput()
		m.close()
		left, _ = exec.Command(nft, "list", "ruleset").CombinedOutput()
	})
	require.NoError(t, err)
	require.NoError(t, listErr, "%s", rules)
	require.Contains(t, string(rules), "table ip berth01234567")
	require.Contains(t, string(rules), "type nat hook postrouting priority srcnat; policy accept;")
	require.Contains(t, string(rules), `ip saddr 198.18.0.2 oifname != "berth01234567" masquerade`)
	require.Empty(t, string(left))
	require.True(t, m.owned, "this kernel can")
}

func TestRulesOfIPv6(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("needs nft: ", err)
	}
	var rules []byte
	testnet.InNew(t, func() {
		var m *masquerade
		if m, err = newMasquerade("berth01234567", netip.MustParseAddr("fd62:6572:7468::c612:2")); err != nil {
			return
		}
		defer m.close()
		rules, _ = exec.Command(nft, "list", "ruleset").CombinedOutput()
	})
	require.NoError(t, err)
	require.Contains(t, string(rules), "table ip6 berth01234567")
	require.Contains(t, string(rules), `ip6 saddr fd62:6572:7468::c612:2 oifname != "berth01234567" masquerade`)
}

func TestRulesOfAKernelWithoutOwners(t *testing.T) {
	nft, err := exec.LookPath("nft")
	if err != nil {
		t.Skip("needs nft: ", err)
	}
	var rules []byte
	testnet.InNew(t, func() {
		for range 2 { // the first is left by a run that was killed
			var m *masquerade
			if m, err = createMasquerade("berth01234567", netip.MustParseAddr("198.18.0.2"), false); err != nil {
				return
			}
			rules, _ = exec.Command(nft, "list", "ruleset").CombinedOutput()
			defer m.close()
		}
	})
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(rules), "masquerade"), "%s", rules)
}
