package testnet

import (
	"errors"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// locks is a file of this test alone: it may take all locks.
func locks(t *testing.T) string { return filepath.Join(t.TempDir(), "lock") }

func networks(all ...string) func() ([]netip.Prefix, error) {
	var parsed []netip.Prefix
	for _, network := range all {
		parsed = append(parsed, netip.MustParsePrefix(network))
	}
	return func() ([]netip.Prefix, error) { return parsed, nil }
}

func TestNoTwoTestsHaveOneNetwork(t *testing.T) {
	one, other := Claim(t), Claim(t)
	require.GreaterOrEqual(t, max(one, other)-min(one, other), Size)
}

func TestANetworkIsFreeAgainAfterItsTest(t *testing.T) {
	file := locks(t)
	claim, release, err := claimFrom(file, 0, networks())
	require.NoError(t, err)
	require.Equal(t, 100, claim)
	_, releaseSecond, err := claimFrom(file, 0, networks())
	require.NoError(t, err)
	require.NoError(t, release())
	again, releaseAgain, err := claimFrom(file, 0, networks())
	require.NoError(t, err)
	require.Equal(t, claim, again)
	require.NoError(t, errors.Join(releaseSecond(), releaseAgain()))
}

func TestNetworksOfInterfacesAreLeftAlone(t *testing.T) {
	file := locks(t)
	claim, release, err := claimFrom(file, 0, networks("10.102.7.0/24", "10.104.0.0/16", "10.96.0.0/14", "192.168.0.0/16"))
	require.NoError(t, err)
	require.Equal(t, 108, claim)
	require.NoError(t, release())
	for range 2 { // what was looked at is not kept
		_, _, err = claimFrom(file, count/2, networks("10.0.0.0/8"))
		require.EqualError(t, err, "no 4 networks between 10.100.0.0/16 and 10.255.0.0/16 are free for a test: "+
			"berth doctor --fix removes leftovers of killed clusters")
	}
	claim, release, err = claimFrom(file, count-1, networks("10.255.0.0/24"))
	require.NoError(t, err)
	require.Equal(t, 100, claim, "after the last comes the first")
	require.NoError(t, release())
}

func TestAClaimNeedsToSeeTheInterfaces(t *testing.T) {
	file := locks(t)
	want := errors.New("no netlink")
	_, _, err := claimFrom(file, 0, func() ([]netip.Prefix, error) { return nil, want })
	require.ErrorIs(t, err, want)
}
