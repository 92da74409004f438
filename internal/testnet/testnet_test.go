package testnet

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// names are locks of this test alone: it may take them all.
func names(t *testing.T) string { return fmt.Sprintf("@berth-%s-%d-", t.Name(), os.Getpid()) }

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
	claim, release, err := claimFrom(names(t), 0, networks())
	require.NoError(t, err)
	require.Equal(t, 100, claim)
	_, releaseSecond, err := claimFrom(names(t), 0, networks())
	require.NoError(t, err)
	require.NoError(t, release())
	again, releaseAgain, err := claimFrom(names(t), 0, networks())
	require.NoError(t, err)
	require.Equal(t, claim, again)
	require.NoError(t, errors.Join(releaseSecond(), releaseAgain()))
}

func TestNetworksOfInterfacesAreLeftAlone(t *testing.T) {
	claim, release, err := claimFrom(names(t), 0, networks("10.102.7.0/24", "10.104.0.0/16", "10.96.0.0/14", "192.168.0.0/16"))
	require.NoError(t, err)
	require.Equal(t, 108, claim)
	require.NoError(t, release())
	for range 2 { // what was looked at is not kept
		_, _, err = claimFrom(names(t), count/2, networks("10.0.0.0/8"))
		require.EqualError(t, err, "no 4 networks between 10.100.0.0/16 and 10.255.0.0/16 are free for a test: "+
			"berth doctor --fix removes leftovers of killed clusters")
	}
	claim, release, err = claimFrom(names(t), count-1, networks("10.255.0.0/24"))
	require.NoError(t, err)
	require.Equal(t, 100, claim, "after the last comes the first")
	require.NoError(t, release())
}

func TestAClaimNeedsToSeeTheInterfaces(t *testing.T) {
	want := errors.New("no netlink")
	_, _, err := claimFrom(names(t), 0, func() ([]netip.Prefix, error) { return nil, want })
	require.ErrorIs(t, err, want)
}
