package up

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzReadState reads arbitrary contents of cluster.json: the state is complete, or refused with an error that names the file.
func FuzzReadState(f *testing.F) {
	f.Add([]byte(`{"format":1,"nodeName":"n","podCIDR":"10.85.0.0/16","serviceCIDR":"10.86.0.0/16","apiPort":6443}`))
	f.Add([]byte(`{"format":99}`))
	f.Add([]byte(`{"form`))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), stateName)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		saved, err := readState(path)
		if err != nil {
			require.ErrorContains(t, err, path)
			return
		}
		require.NotEmpty(t, saved.NodeName)
		config, err := (Config{
			DataDir: t.TempDir(), NodeName: saved.NodeName, PodCIDR: saved.PodCIDR, ServiceCIDR: saved.ServiceCIDR, APIPort: saved.APIPort,
		}).Complete()
		if err == nil {
			_, _ = NewLayout(config)
		}
	})
}
