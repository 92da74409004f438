package cpus_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/statefile"
	"github.com/berth-dev/berth/kubelet/resources/checkpoint/checkpointtest"
	"github.com/berth-dev/berth/kubelet/resources/cpus"
	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
)

func TestDamagedStateIsSetAside(t *testing.T) {
	for policy, static := range map[string]bool{"none": false, "static": true} {
		t.Run(policy, func(t *testing.T) {
			checkpointtest.DamagedIsSetAside(t, cpus.StateFile, policy, func(t *testing.T, dir string) {
				m, err := open(machinetest.New(1, 1, 4, 1), dir, func(c *cpus.Config) { c.Static = static })
				require.NoError(t, err)
				if static {
					// Whoever has CPUs of its own gets some again when its Pod is admitted after the start.
					require.NoError(t, admit(m, podOf("p", container("c", "2"))))
					require.Equal(t, "1-2", of(m, "p", "c"))
				}
			})
		})
	}
}

// TestStateWithAnotherContentIsDamaged has files that are JSON of the right form, and not what a kubelet has written.
func TestStateWithAnotherContentIsDamaged(t *testing.T) {
	for name, content := range map[string]string{
		"checksum": `{"policyName":"static","defaultCpuSet":"0-3","checksum":17}`,
		"CPUs":     `{"policyName":"static","defaultCpuSet":"0-x","checksum":0}`,
		"policy":   `{"policyName":"dynamic","defaultCpuSet":"0-3","checksum":0}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, cpus.StateFile)
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
			m, err := open(machinetest.New(1, 1, 4, 1), dir, nil)
			require.NoError(t, err)
			require.Equal(t, "0-3", m.Shared().String())
			aside, err := statefile.Asides(path)
			require.NoError(t, err)
			require.Len(t, aside, 1)
		})
	}
}
