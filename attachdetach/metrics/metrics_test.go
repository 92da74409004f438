package metrics_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/attachdetach/cache"
	"github.com/berth-dev/berth/attachdetach/metrics"
)

type actual struct{ counts cache.Count }

func (a actual) Counts() cache.Count { return a.counts }

type desired struct {
	actual
	nodes map[types.NodeName]cache.Count
}

func (d desired) CountsPerNode() map[types.NodeName]cache.Count { return d.nodes }

// B-26: names and labels are those of Kubernetes' dashboards; counts are read at the scrape.
func TestNamesAndLabels(t *testing.T) {
	c := metrics.New(actual{cache.Count{"csi:d": 3}},
		desired{actual{cache.Count{"csi:d": 2}}, map[types.NodeName]cache.Count{"a": {"csi:d": 4}}})
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	c.ForcedDetach("timeout")
	c.ForcedDetach("out-of-service")
	c.ForcedDetach("out-of-service")
	families, err := registry.Gather()
	require.NoError(t, err)
	var text strings.Builder
	for _, family := range families {
		_, err := expfmt.MetricFamilyToText(&text, family)
		require.NoError(t, err)
	}
	require.Equal(t, `# HELP attachdetach_controller_forced_detaches Number of detaches that did not wait for the volume to be unmounted, by reason.
# TYPE attachdetach_controller_forced_detaches counter
attachdetach_controller_forced_detaches{reason="out-of-service"} 2
attachdetach_controller_forced_detaches{reason="timeout"} 1
# HELP attachdetach_controller_total_volumes Number of volumes that are attached, or should be, by plugin.
# TYPE attachdetach_controller_total_volumes gauge
attachdetach_controller_total_volumes{plugin_name="csi:d",state="actual_state_of_world"} 3
attachdetach_controller_total_volumes{plugin_name="csi:d",state="desired_state_of_world"} 2
# HELP storage_count_attachable_volumes_in_use Number of attachable volumes that Pods use, by node and plugin.
# TYPE storage_count_attachable_volumes_in_use gauge
storage_count_attachable_volumes_in_use{node="a",volume_plugin="csi:d"} 4
`, text.String())
}

// calls to plugins are timed by their outcome; looking a plugin up is no call.
func TestOperations(t *testing.T) {
	c := metrics.New(actual{}, desired{})
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	c.Observe("csi:d", "volume_attach", 300*time.Millisecond, nil)
	c.Observe("csi:d", "volume_attach", 11*time.Minute, errors.New("stuck"))
	c.Observe("", "volume_attach", time.Second, errors.New("no plugin"))
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 1)
	require.Equal(t, "storage_operation_duration_seconds", families[0].GetName())
	outcomes := make(map[string]uint64)
	for _, metric := range families[0].GetMetric() {
		labels := make(map[string]string)
		for _, pair := range metric.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		require.Equal(t, "csi:d", labels["volume_plugin"])
		require.Equal(t, "volume_attach", labels["operation_name"])
		require.Equal(t, "false", labels["migrated"])
		buckets := metric.GetHistogram().GetBucket()
		require.InDelta(t, 0.1, buckets[0].GetUpperBound(), 0)
		require.InDelta(t, 600, buckets[len(buckets)-1].GetUpperBound(), 0)
		outcomes[labels["status"]] = metric.GetHistogram().GetSampleCount()
	}
	require.Equal(t, map[string]uint64{"success": 1, "fail-unknown": 1}, outcomes)
}
