//go:build integration

package integration

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// metricsPages returns the metrics of `berth up` as the kubelet and the local socket serve them.
func (c *cluster) metricsPages() map[string]string {
	c.t.Helper()
	socket := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "unix", filepath.Join(c.runDir(), "berth.sock"))
	}}}
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://berth/metrics", http.NoBody)
	require.NoError(c.t, err)
	response, err := socket.Do(request)
	require.NoError(c.t, err)
	defer response.Body.Close()
	local, err := io.ReadAll(response.Body)
	require.NoError(c.t, err)
	return map[string]string{
		"kubelet": c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/metrics"), "socket": string(local),
	}
}

// checkControllerMetrics looks for the metrics of the controllers of `berth up` while a Pod uses a disk.
func checkControllerMetrics(t *testing.T, c *cluster) {
	t.Helper()
	for where, text := range c.metricsPages() {
		require.NotContains(t, text, "error gathering metrics", where)
		for _, line := range []string{
			`attachdetach_controller_total_volumes{plugin_name="kubernetes.io/csi:csi.berth.dev",state="actual_state_of_world"} 1`,
			`storage_count_attachable_volumes_in_use{node="` + homeNode + `",volume_plugin="kubernetes.io/csi:csi.berth.dev"} 1`,
			`storage_operation_duration_seconds_count{migrated="false",operation_name="volume_attach",status="success",` +
				`volume_plugin="kubernetes.io/csi:csi.berth.dev"} `,
			`controller_persistentvolumeclaim_provision_total{class="berth-loop",provisioner="csi.berth.dev",source=""} 1`,
			`controller_persistentvolumeclaim_provision_waiting{provisioner="berth.dev/local"} 0`,
			`controller_persistentvolumeclaim_provision_waiting{provisioner="csi.berth.dev"} 0`,
			`berth_expectations_keys{controller="replicaset-controller"} `,
			`workqueue_depth{name="replicaset-controller",priority="live"} 0`,
			`workqueue_depth{name="attacher of csi.berth.dev",priority="live"} 0`,
			`workqueue_depth{name="resizer of csi.berth.dev",priority="live"} 0`,
			`workqueue_depth{name="capacity of csi.berth.dev",priority="live"} `,
		} {
			require.Equal(t, 1, strings.Count(text, "\n"+line), "%s: %s in\n%s", where, line, text)
		}
	}
}
