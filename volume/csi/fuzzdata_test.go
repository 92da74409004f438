package csi

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzLoadData reads arbitrary records of a mounted volume: each is complete, or none.
func FuzzLoadData(f *testing.F) {
	f.Add([]byte(`{"driverName":"csi.example.com","volumeHandle":"h","specVolID":"pv"}`))
	f.Add([]byte(`{"driverName":"../..","volumeHandle":"h"}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, dataFile), content, 0o600))
		data, err := loadData(dir)
		if err != nil {
			require.True(t, errors.Is(err, errNoData), "%v", err)
			return
		}
		require.NoError(t, CheckDriverName(data.DriverName))
		require.NotEmpty(t, data.VolumeHandle)
	})
}
