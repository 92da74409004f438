package memory_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/resources/checkpoint/checkpointtest"
	"github.com/berth-dev/berth/kubelet/resources/memory"
)

// TestDamagedStateOfNoDecisionsIsSetAside: without the policy static the file has nothing that the kubelet could not start without.
func TestDamagedStateOfNoDecisionsIsSetAside(t *testing.T) {
	checkpointtest.DamagedIsSetAside(t, memory.StateFile, "None", func(t *testing.T, dir string) {
		_, err := open(t, dir, false)
		require.NoError(t, err)
	})
}
