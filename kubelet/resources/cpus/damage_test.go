package cpus_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/resources/checkpoint/checkpointtest"
	"github.com/berth-dev/berth/kubelet/resources/cpus"
	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
)

// TestDamagedStateOfNoDecisionsIsSetAside: without the policy static the file has nothing that the kubelet could not start without.
func TestDamagedStateOfNoDecisionsIsSetAside(t *testing.T) {
	checkpointtest.DamagedIsSetAside(t, cpus.StateFile, "none", func(t *testing.T, dir string) {
		_, err := open(machinetest.New(1, 1, 4, 1), dir, func(c *cpus.Config) { c.Static = false })
		require.NoError(t, err)
	})
}
