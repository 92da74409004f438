package cpus

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/resources/machine/machinetest"
	"github.com/berth-dev/berth/kubelet/resources/metrics"
)

// FuzzState opens an arbitrary state file, with a checksum that is right so that its content is reached: the shared CPUs and those of containers
// are all of the machine, and reading them takes no more memory than a file may cost.
func FuzzState(f *testing.F) {
	f.Add([]byte(`{"policyName":"static","defaultCpuSet":"0-1","entries":{"u":{"app":"2-3"}},"checksum":0}`), true)
	f.Add([]byte(`{"policyName":"static","defaultCpuSet":"","entries":{}}`), true)
	f.Add([]byte(`{"policyName":"none","defaultCpuSet":""}`), false)
	f.Add([]byte(`{"policyName":"static","defaultCpuSet":"0-9999999","entries":{"u":{"a":"3-1"}}}`), true)
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
		m, err := New(Deps{Topology: machinetest.New(1, 1, 4, 1), Metrics: metrics.New()}, Config{Static: true, ReservedCount: 1, Dir: dir})
		require.NoError(t, err)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = m.Open()
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20), "bytes for a file of %d", len(content))
		if err != nil {
			return
		}
		require.True(t, m.state.shared.Union(m.state.exclusive()).Equals(m.topology.All()))
		require.True(t, m.reserved.IsSubsetOf(m.state.shared))
		again, err := New(Deps{Topology: m.topology, Metrics: metrics.New()}, m.config)
		require.NoError(t, err)
		found, err := again.Open()
		require.NoError(t, err)
		require.True(t, found)
		require.True(t, m.state.shared.Equals(again.state.shared))
	})
}
