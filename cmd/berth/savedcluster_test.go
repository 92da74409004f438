package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestADamagedClusterCanBeReplaced(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cluster.json"), []byte("{"), 0o600))
	root := newRoot()
	require.NoError(t, root.Flags().Set(dataDirFlag, dir))
	cmd, _, err := root.Find([]string{"snapshot", "restore"})
	require.NoError(t, err)
	_, err = replacedLayout(cmd, false)
	require.ErrorContains(t, err, "cluster.json is damaged")
	layout, err := replacedLayout(cmd, true)
	require.NoError(t, err)
	require.Equal(t, dir, layout.DataDir)
}

func TestSizesHaveNoExponent(t *testing.T) {
	for size, text := range map[int64]string{
		0: "0 B", 999: "999 B", 1000: "0.977 KiB", 1 << 10: "1 KiB", 1005 << 20: "0.981 GiB", 999_600 << 10: "976 MiB",
	} {
		require.Equal(t, text, bytesText(size))
	}
}
