package memory_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/kubelet/resources/checkpoint/checkpointtest"
	"github.com/berth-dev/berth/kubelet/resources/hints"
	"github.com/berth-dev/berth/kubelet/resources/memory"
)

func TestDamagedStateIsSetAside(t *testing.T) {
	for policy, static := range map[string]bool{"None": false, "Static": true} {
		t.Run(policy, func(t *testing.T) {
			checkpointtest.DamagedIsSetAside(t, memory.StateFile, policy, func(t *testing.T, dir string) {
				m, err := open(t, dir, static)
				require.NoError(t, err)
				if static {
					// Whoever has memory of chosen nodes gets some again when its Pod is admitted after the start.
					require.NoError(t, admit(m, podOf("p", container("c", "1Gi", "")), hints.Hint{Nodes: hints.MaskOf(1)}))
					require.Equal(t, "1", m.Nodes("p", "c").String())
				}
			})
		})
	}
}

func TestStateOfANodeWithoutContentIsDamaged(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, memory.StateFile)
	require.NoError(t, os.WriteFile(path, []byte(`{"policyName":"Static","machineState":{"0":null},"checksum":0}`), 0o600))
	_, err := open(t, dir, true)
	require.NoError(t, err)
	aside, err := statefile.Asides(path)
	require.NoError(t, err)
	require.Len(t, aside, 1)
}
