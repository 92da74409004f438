package hostports

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzRead reads an arbitrary file of the CNI cache with an arbitrary configuration of the network: what the plugin gets is JSON with the host
// ports that the file has.
func FuzzRead(f *testing.F) {
	network := []byte(`{"cniVersion": "1.0.0", "plugins": [{}, {"backend": "nftables", "capabilities": {"portMappings": true}}]}`)
	f.Add(`{"containerId": "c", "capabilityArgs": {"portMappings": [{"hostPort": 80}]}, "result": {"interfaces": [{"name": "lo"}]}}`, network)
	f.Add(`{"capabilityArgs": {"portMappings": [null]}, "result": null}`, []byte("null"))
	f.Add("null", []byte(`{"plugins": null}`))
	f.Fuzz(func(t *testing.T, content string, network []byte) {
		path := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		a, err := read(path)
		if err != nil || a == nil {
			return
		}
		require.NotEmpty(t, a.port)
		a.Config = network
		data, err := a.config()
		if err != nil {
			require.ErrorContains(t, err, "the network's configuration")
			return
		}
		var got struct {
			Type          string
			RuntimeConfig struct{ PortMappings []json.RawMessage }
		}
		require.NoError(t, json.Unmarshal(data, &got))
		require.Equal(t, plugin, got.Type)
		require.Len(t, got.RuntimeConfig.PortMappings, len(a.CapabilityArgs.PortMappings))
	})
}
