//go:build integration

package integration

import (
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/internal/podutil"
)

// busy is a Deployment whose Pods use a fifth of a core for as long as they run, and an autoscaler that wants them at half of
// what they request, 100 m: it must add Pods up to its maximum.
const busy = `{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "busy"}, "spec": {
	"selector": {"matchLabels": {"app": "busy"}}, "template": {"metadata": {"labels": {"app": "busy"}}, "spec": {
		"terminationGracePeriodSeconds": 0, "containers": [{"name": "main", "image": "` + shellImage + `", "imagePullPolicy": "Never",
		"resources": {"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "200m"}},
		"command": ["/bin/busybox", "sh", "-c", "while :; do :; done"]}]}}}}
---
{"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "busy"}, "spec": {
	"minReplicas": 1, "maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "busy"},
	"metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}},
		{"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}}]}}`

// TestResourceMetrics reads the usage of a busy Pod as kubectl top and the autoscaler do.
func TestResourceMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(busy)
	pod := c.waitPod("app=busy", "runs", isReady)
	line := strings.Fields(c.mustRun("kubectl", "top", "pod", pod.Name, "--containers", "--no-headers"))
	ready := podutil.FindCondition(&pod.Status, corev1.PodReady).LastTransitionTime
	t.Logf("kubectl top knows the first Pod %s after it became ready, by a clock of seconds", time.Since(ready.Time).Round(10*time.Millisecond))
	require.Equal(t, []string{pod.Name, "main"}, line[:2])
	require.Positive(t, quantity(t, line[2], "m"), "%s", line)
	quantity(t, line[3], "Mi") // a loop needs less than one
	node := strings.Fields(c.mustRun("kubectl", "top", "node", "--no-headers"))
	require.Equal(t, homeNode, node[0])
	require.GreaterOrEqual(t, quantity(t, node[1], "m"), quantity(t, line[2], "m"))
	require.Contains(t, c.mustRun("kubectl", "get", "pods.metrics.k8s.io", "-l", "app=busy"), pod.Name)
	require.Equal(t, "yes\n", c.mustRun("kubectl", "auth", "can-i", "list", "pods.metrics.k8s.io", "--as", "me", "--as-group", viewers(t, c)))

	autoscalers := c.client().AutoscalingV2().HorizontalPodAutoscalers("default")
	var last *autoscalingv2.HorizontalPodAutoscaler
	err := wait.PollUntilContextTimeout(t.Context(), time.Second, waitTimeout, true, func(ctx context.Context) (bool, error) {
		var err error
		last, err = autoscalers.Get(ctx, "busy", metav1.GetOptions{})
		return err == nil && last.Status.DesiredReplicas > 1 && len(last.Status.CurrentMetrics) == 2, err
	})
	require.NoError(t, err, "the autoscaler adds Pods: %+v", last.Status)
	c.mustRun("kubectl", "delete", "hpa,deployment", "busy", "--cascade=foreground", "--timeout=2m")
	out, err := c.run("kubectl", "top", "pod", pod.Name)
	require.Error(t, err)
	require.Contains(t, out, "not found")
	c.stop()
	require.Empty(t, c.leftovers())
}

// viewers is a group whose members have the role view.
func viewers(t *testing.T, c *cluster) string {
	c.mustRun("kubectl", "create", "clusterrolebinding", "viewers", "--clusterrole=view", "--group=viewers")
	return "viewers"
}

// quantity returns the number before the unit.
func quantity(t *testing.T, text, unit string) int {
	t.Helper()
	number, ok := strings.CutSuffix(text, unit)
	require.True(t, ok, "%q is not in %s", text, unit)
	n, err := strconv.Atoi(number)
	require.NoError(t, err)
	return n
}
