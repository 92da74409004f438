package ipforward

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestForwardingKeepsRoutersAdvertisements(t *testing.T) {
	root := t.TempDir()
	put := func(name, value string) {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(value+"\n"), 0o644))
	}
	put("net/ipv4/ip_forward", "0")
	put("net/ipv6/conf/all/forwarding", "0")
	links := func() ([]string, error) { return []string{"eth0", "off", "own"}, nil }
	for name, value := range map[string]string{"docker0": "1", "default": "1", "eth0": "1", "off": "0", "own": "2"} {
		put("net/ipv6/conf/"+name+"/accept_ra", value)
	}
	changed, err := enable(root, false, links)
	require.NoError(t, err)
	require.Equal(t, []string{"net.ipv4.ip_forward=1"}, changed)
	changed, err = enable(root, true, links)
	require.NoError(t, err)
	require.Equal(t, []string{"net.ipv6.conf.eth0.accept_ra=2", "net.ipv6.conf.all.forwarding=1"}, changed)
	for name, want := range map[string]string{"docker0": "1", "default": "1", "off": "0", "own": "2"} {
		require.Equal(t, want, read(root, "net/ipv6/conf/"+name+"/accept_ra"), name)
	}
	put("net/ipv6/conf/eth0/accept_ra", "1")
	for _, ipv6 := range []bool{false, true} {
		changed, err = enable(root, ipv6, links)
		require.NoError(t, err)
		require.Empty(t, changed, "the machine forwards already: its settings are its own")
	}
	_, err = enable(t.TempDir(), true, links)
	require.ErrorContains(t, err, "enable IP forwarding")
}
