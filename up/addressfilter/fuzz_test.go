package addressfilter

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzReadPort reads arbitrary files of the container runtime's cache of CNI results: a port has addresses that are some, and is not the bridge.
func FuzzReadPort(f *testing.F) {
	for _, version := range []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		f.Add([]byte(`{"result":{"cniVersion":"` + version + `","interfaces":[{"name":"br0","mac":"02:00:00:00:00:01"},{"name":"veth1"},` +
			`{"name":"eth0","mac":"02:00:00:00:00:05","sandbox":"/run/netns/x"}],"ips":[{"version":"4","interface":2,"address":"10.1.0.5/24"}]}}`))
		f.Add([]byte(`{"result":{"cniVersion":"` + version + `","interfaces":[null],"ips":[null],"routes":[null]}}`))
	}
	f.Add([]byte(`{"result":{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.5/24"}}}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		file := filepath.Join(t.TempDir(), "result")
		require.NoError(t, os.WriteFile(file, content, 0o600))
		port, err := Table{Bridge: "br0"}.readPort(file)
		if err != nil {
			return
		}
		require.NotEqual(t, "br0", port.Name)
		for _, address := range port.Addresses {
			require.True(t, address.IsValid())
			require.False(t, address.Is4In6())
		}
	})
}
