package devices_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// TestPluginsPrepareDevicesInTime: a plugin that hangs would keep the container, and all behind it, from starting for ever.
func TestPluginsPrepareDevicesInTime(t *testing.T) {
	f, p := newFixture(t), newPlugin("x")
	p.options.PreStartRequired = true
	f.serve(p, "gpu")
	f.waitCapacity(1, 1)
	pod := podOf("p", "1")
	require.NoError(t, f.admit(pod))
	_, err := f.prepare(pod)
	require.NoError(t, err)
	require.Positive(t, p.startTimeout)
	require.LessOrEqual(t, p.startTimeout, 30*time.Second, "upstream's limit")
}

// TestPluginsInDirectoriesOfTheirOwn: some plugins keep their sockets apart from those of others.
func TestPluginsInDirectoriesOfTheirOwn(t *testing.T) {
	f := newFixture(t)
	f.serve(newPlugin("x", "y"), "vendor/gpu")
	f.waitCapacity(2, 2)
}

// TestPreferencesDoNotCostAlignment: a plugin chooses among the devices of other NUMA nodes only as many as are missing.
func TestPreferencesDoNotCostAlignment(t *testing.T) {
	f, p := newFixture(t), newPlugin()
	for id, node := range map[string]int64{"a": 0, "b": 1, "c": 1, "d": 1} {
		p.list = append(p.list, &pluginapi.Device{
			ID: id, Health: pluginapi.Healthy, Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: node}}},
		})
	}
	p.options.GetPreferredAllocationAvailable, p.prefers = true, []string{"c", "d"}
	f.serve(p, "gpu")
	f.waitCapacity(4, 4)
	pod := podOf("p", "2")
	require.NoError(t, f.admit(pod, 0))
	_, err := f.prepare(pod)
	require.NoError(t, err)
	require.Equal(t, []string{"prefer of a b c d, must a", "allocate a c"}, p.calls)
}
