package resolvconf_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/resolvconf"
)

// FuzzRead reads arbitrary resolver files: servers are addresses, those for other networks are on no loopback, and a file that is written with
// what was read says the same.
func FuzzRead(f *testing.F) {
	f.Add("nameserver 192.0.2.1\nnameserver fe80::1%eth0 # the router\nsearch a.example b.example\noptions ndots:2 rotate\n", "")
	f.Add("nameserver 127.0.0.53\ndomain example\noptions edns0", "nameserver ::ffff:127.0.0.1\nnameserver 2001:db8::1\n")
	f.Add("nameserver 0.0.0.0\nnameserver ::\n", "nameserver x\n;search y")
	f.Add("nameserver FD00:0:0::A\n", "")
	f.Fuzz(func(t *testing.T, main, resolved string) {
		dir := t.TempDir()
		files := resolvconf.Files{Main: filepath.Join(dir, "main"), Resolved: filepath.Join(dir, "resolved")}
		require.NoError(t, os.WriteFile(files.Main, []byte(main), 0o600))
		require.NoError(t, os.WriteFile(files.Resolved, []byte(resolved), 0o600))
		own, err := files.Read()
		require.NoError(t, err)
		others, err := files.ReadForOthers()
		require.NoError(t, err)
		for _, config := range []resolvconf.Config{own, others} {
			for _, server := range config.Servers {
				require.Equal(t, netip.MustParseAddr(server).String(), server)
			}
			for _, word := range append(config.Searches, config.Options...) {
				require.Len(t, strings.Fields(word), 1)
			}
			require.NoError(t, os.WriteFile(files.Main, []byte(config.String()), 0o600))
			again, err := files.Read()
			require.NoError(t, err)
			again.File = config.File
			require.Equal(t, config.String(), again.String())
		}
		for _, server := range others.Servers {
			addr := netip.MustParseAddr(server).Unmap()
			require.False(t, addr.IsLoopback() || addr.IsUnspecified(), "another network cannot reach %s", server)
		}
	})
}
