//go:build integration

package integration

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// TestNodeAPI reads the state of a node and the usage of its Pods through the API server, as kubectl does.
func TestNodeAPI(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "used", "labels": {"app": "used"}}, "spec": {
		"terminationGracePeriodSeconds": 0, "volumes": [{"name": "scratch", "emptyDir": {}}],
		"containers": [` + shell("echo hello; /bin/busybox dd if=/dev/zero of=/scratch/x bs=1M count=2; exec /bin/busybox sleep 3600",
		`"name": "main", "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]`) + `]}}`)
	c.waitPod("app=used", "ready", isReady)
	raw := func(path string) []byte {
		return []byte(c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy"+path))
	}

	var summary statsapi.Summary
	require.NoError(t, retryUntil(t.Context(), func() error {
		summary = statsapi.Summary{} // the runtime measures by and by
		if err := json.Unmarshal(raw("/stats/summary"), &summary); err != nil {
			return err
		}
		for i := range summary.Pods {
			if pod := &summary.Pods[i]; pod.PodRef.Name == "used" && len(pod.Containers) == 1 && pod.Containers[0].CPU != nil {
				return nil
			}
		}
		return errors.New("the pod is not among those measured")
	}, nil))
	node := summary.Node
	require.Equal(t, homeNode, node.NodeName)
	require.Positive(t, *node.CPU.UsageCoreNanoSeconds)
	require.Positive(t, *node.Memory.WorkingSetBytes)
	require.Positive(t, *node.Memory.PageFaults)
	require.Positive(t, *node.Fs.CapacityBytes)
	require.Positive(t, *node.Runtime.ImageFs.CapacityBytes)
	require.Positive(t, *node.Runtime.ContainerFs.CapacityBytes)
	require.Positive(t, *node.Rlimit.MaxPID)
	require.NotNil(t, node.Swap)
	require.NotEmpty(t, node.Network.Interfaces)
	systems := map[string]*statsapi.ContainerStats{}
	for i := range node.SystemContainers {
		systems[node.SystemContainers[i].Name] = &node.SystemContainers[i]
	}
	for _, name := range []string{"kubelet", "runtime", "pods"} {
		require.Contains(t, systems, name)
		require.Positive(t, *systems[name].CPU.UsageCoreNanoSeconds, name)
		require.Positive(t, *systems[name].Memory.WorkingSetBytes, name)
	}
	for i := range summary.Pods {
		pod := &summary.Pods[i]
		if pod.PodRef.Name != "used" {
			continue
		}
		require.Positive(t, *pod.Containers[0].Memory.WorkingSetBytes)
		require.Positive(t, *pod.Containers[0].Logs.UsedBytes)
		require.NotEmpty(t, pod.Network.Name)
		require.Positive(t, *pod.EphemeralStorage.CapacityBytes)
		require.GreaterOrEqual(t, *pod.EphemeralStorage.UsedBytes, uint64(2<<20), "including its emptyDir")
	}

	require.Contains(t, string(raw("/metrics")), `csi_operations_seconds_count{driver_name="csi.berth.dev",grpc_status_code="OK",`+
		`method_name="/csi.v1.Node/NodeGetInfo",migrated="false"} 1`)
	require.Contains(t, string(raw("/metrics")), `storage_operation_duration_seconds_count{migrated="false",`+
		`operation_name="volume_mount",status="success",volume_plugin="kubernetes.io/empty-dir"} 1`)
	require.Equal(t, "ok", string(raw("/healthz")))
	require.Equal(t, "ok", string(raw("/livez")))
	var shown map[string]kubeletconfig.KubeletConfiguration
	require.NoError(t, json.Unmarshal(raw("/configz"), &shown))
	require.EqualValues(t, 110, shown["kubeletconfig"].MaxPods)
	out, err := c.run("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/debug/pprof/")
	require.Error(t, err)
	require.Contains(t, out, "not allow", "the profiler is off")
	require.Contains(t, string(raw("/logs/")), "pods")
}
