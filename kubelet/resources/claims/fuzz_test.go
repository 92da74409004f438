package claims

import (
	"encoding/json"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzState reads an arbitrary state file, with a checksum that is right so that its content is reached: what is read is written and read again as
// it was.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"c","ClaimName":"gpu",`+
		`"Namespace":"n","PodUIDs":{"u":{}},"DriverState":{"gpu.example":{"Devices":[{"PoolName":"p","DeviceName":"d","ShareID":null,"CDIDeviceIDs":["x=y"]}]}}}]}`), true)
	f.Add([]byte(`{"ClaimInfoStateList":[null]}`), true)
	f.Add([]byte(`{"ClaimInfoStateList":[{"PodUIDs":null,"DriverState":{"d":{}}},{"ClaimName":""}]}`), true)
	f.Add([]byte(`{"Data":"{}","Checksum":1}`), false)
	f.Fuzz(func(t *testing.T, content []byte, sum bool) {
		if sum {
			var err error
			content, err = json.Marshal(fileContent{Data: string(content), Checksum: crc32.ChecksumIEEE(content)})
			require.NoError(t, err)
		}
		path := filepath.Join(t.TempDir(), StateFile)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		held, err := readState(path)
		if err != nil {
			require.Empty(t, held)
			return
		}
		for k, c := range held {
			require.Equal(t, k, key{c.Namespace, c.ClaimName})
			require.NotNil(t, c.PodUIDs)
			require.NotNil(t, c.DriverState)
		}
		require.NoError(t, writeState(path, held))
		again, err := readState(path)
		require.NoError(t, err)
		require.Equal(t, held, again)
	})
}
