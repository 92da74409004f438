package memory

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
)

// FuzzState opens an arbitrary state file, with a checksum that is right so that its content is reached: containers have no more memory than the
// machine, and when all have ended all of it is free.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"policyName":"Static","machineState":{"0":{"numberOfAssignments":1,"memoryMap":{"memory":{"total":1,"allocatable":1}},"cells":[0]}},`+
		`"entries":{"u":{"app":[{"numaAffinity":[0],"type":"memory","size":1024}]}},"checksum":1}`), true)
	f.Add([]byte(`{"policyName":"Static","machineState":{"7":null},"entries":{"u":{"a":[{"numaAffinity":[-1,99],"type":"x","size":18446744073709551615}]}}}`), true)
	f.Add([]byte(`{"policyName":"Static","machineState":{"0":{}},"entries":{"u":{"a":[{"numaAffinity":[0,0,1],"type":"hugepages-2Mi","size":9223372036854775807}]}}}`), true)
	f.Add([]byte(`{"policyName":"Static","machineState":{}}`), false)
	f.Fuzz(func(t *testing.T, content []byte, sum bool) {
		var c fileContent
		if sum && json.Unmarshal(content, &c) == nil {
			var err error
			c.Checksum = c.checksum(upstreamType)
			content, err = json.Marshal(&c)
			require.NoError(t, err)
		}
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, StateFile), content, 0o600))
		topology := machinetest.New(2, 1, 4, 1)
		reserved := Reservation{0: {corev1.ResourceMemory: 1 << 30}, 1: {corev1.ResourceMemory: 1 << 30}}
		m, err := New(Deps{Topology: topology, Metrics: metrics.New()}, Config{Static: true, Reserved: reserved, Dir: dir})
		require.NoError(t, err)
		if _, err := m.Open(); err != nil {
			return
		}
		given := m.state.given.owned()
		for _, uid := range m.Pods() {
			require.NoError(t, m.Release(uid))
		}
		require.Empty(t, m.Pods())
		for id, node := range m.state.nodes {
			for kind, have := range node.MemoryMap {
				require.LessOrEqual(t, have.Free, have.Allocatable, "%s of node %d after the end of %v", kind, id, given)
				require.Equal(t, have.Allocatable, have.Free, "%s of node %d after the end of %v", kind, id, given)
				require.Zero(t, have.Reserved, "%s of node %d after the end of %v", kind, id, given)
			}
		}
	})
}
