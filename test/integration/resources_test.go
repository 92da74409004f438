//go:build integration

package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"github.com/berth-dev/berth/internal/pidfile"
	"github.com/berth-dev/berth/internal/statefile"
)

// sampleResource is what upstream's sample device plugin provides.
const sampleResource = "example.com/resource"

// testDriver is the name of the cluster's DRA driver. All drivers of a machine write their CDI files to one directory, and what a driver that
// was killed has left there is found by its name.
func (c *cluster) testDriver() string { return "own-" + c.id() + ".cdi.k8s.io" }

// managersConfig gives containers CPUs and memory of their own, on a node that reserves 400Mi of memory besides its eviction threshold.
const managersConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicy: static
reservedSystemCPUs: "0"
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 500Mi}}]
topologyManagerPolicy: best-effort
`

const (
	guaranteed = `"resources": {"limits": {"cpu": "1", "memory": "64Mi"}}`
	withDevice = `"resources": {"limits": {"example.com/resource": "1"}}`
	withClaim  = `"resources": {"claims": [{"name": "mine"}]}`
	claimed    = `"resourceClaims": [{"name": "mine", "resourceClaimTemplateName": "template"}]`
)

// claimObjects are what Pods need to claim a device of the test driver.
func (c *cluster) claimObjects() string {
	return `apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: own}
spec: {selectors: [{cel: {expression: "device.driver == '` + c.testDriver() + `'"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: template}
spec: {spec: {devices: {requests: [{name: one, exactly: {deviceClassName: own}}]}}}
`
}

// startSamplePlugin starts upstream's sample device plugin, which expects the kubelet's socket at its usual place.
func (c *cluster) startSamplePlugin(t *testing.T) *daemon {
	const inside = `mount -t tmpfs none /var/lib && mkdir -p /var/lib/kubelet/device-plugins &&
mount --bind "$1" /var/lib/kubelet/device-plugins && exec "$2"`
	return startDaemon(t, "sample-device-plugin", filepath.Join(c.dataDir, "log"), "unshare", "--mount", "sh", "-c", inside, "sh",
		filepath.Join(c.dataDir, "kubelet", "device-plugins"), thirdPartyBinary(t, "sample-device-plugin"))
}

// startTestDriver starts upstream's DRA test driver with two devices.
func (c *cluster) startTestDriver(t *testing.T) *daemon {
	kubelet := filepath.Join(c.dataDir, "kubelet")
	require.NoError(t, os.MkdirAll(filepath.Join(kubelet, "plugins", c.testDriver()), 0o750)) // the driver expects it
	t.Cleanup(c.removeCDIFiles)
	return startDaemon(t, "dra-test-driver", filepath.Join(c.dataDir, "log"), thirdPartyBinary(t, "dra-test-driver"), "kubelet-plugin",
		"--kubeconfig", filepath.Join(c.dataDir, "admin.kubeconfig"), "--drivername", c.testDriver(), "--node-name", homeNode, "--num-devices", "2",
		"--plugin-registration-path", filepath.Join(kubelet, "plugins_registry"), "--datadir", filepath.Join(kubelet, "plugins"))
}

// waitDevices waits until the Node has so many devices of the sample plugin.
func (c *cluster) waitDevices(count int64) {
	c.t.Helper()
	c.waitNode(homeNode, fmt.Sprintf("one with %d devices", count), func(node *corev1.Node) bool {
		devices := node.Status.Allocatable[sampleResource]
		return devices.Value() == count
	})
}

// allowed returns the CPUs on which a Pod's programs may run, and what limits their time.
func (c *cluster) allowed(pod string) (cpus cpuset.CPUSet, quota string) {
	c.t.Helper()
	out := c.mustRun("kubectl", "exec", pod, "--", "/bin/busybox", "sh", "-c",
		"grep Cpus_allowed_list /proc/self/status; cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null; true")
	fields := strings.Fields(out)
	require.GreaterOrEqual(c.t, len(fields), 3, out)
	cpus, err := cpuset.Parse(fields[1])
	require.NoError(c.t, err)
	return cpus, fields[2]
}

// waitAllowed waits until a Pod's programs may run on the CPUs.
func (c *cluster) waitAllowed(pod string, want cpuset.CPUSet) {
	c.t.Helper()
	var last cpuset.CPUSet
	require.NoError(c.t, c.poll(func(context.Context) bool {
		last, _ = c.allowed(pod)
		return last.Equals(want)
	}), "Pod %s runs on CPUs %s, not on %s", pod, last, want)
}

// podResources returns what the podresources socket says of a Pod's container.
func (c *cluster) podResources(pod string) *podresourcesapi.ContainerResources {
	c.t.Helper()
	of, err := c.readPodResources(pod)
	require.NoError(c.t, err)
	return of
}

func (c *cluster) readPodResources(pod string) (*podresourcesapi.ContainerResources, error) {
	conn, err := grpc.NewClient("unix://"+filepath.Join(c.dataDir, "kubelet", "pod-resources", "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	resp, err := podresourcesapi.NewPodResourcesListerClient(conn).Get(c.t.Context(),
		&podresourcesapi.GetPodResourcesRequest{PodName: pod, PodNamespace: "default"})
	if err != nil {
		return nil, err
	}
	if found := len(resp.PodResources.Containers); found != 1 {
		return nil, fmt.Errorf("Pod %s has %d containers with resources, want 1", pod, found)
	}
	return resp.PodResources.Containers[0], nil
}

// killNode kills the process with the kubelet, and waits until it has been started again and the Node is ready.
func (c *cluster) killNode() {
	c.t.Helper()
	pid := pidfile.Running(pidfile.Proc, filepath.Join(c.runDir(), "node.pid"))
	require.NotZero(c.t, pid)
	require.NoError(c.t, syscall.Kill(pid, syscall.SIGKILL))
	c.waitChild(c.t.(*testing.T), "node", pid)
}

// TestResourcesOfTheirOwn gives Pods CPUs, memory, devices and claims of their own, by a configuration file, with upstream's sample device
// plugin and DRA test driver. All of it outlives the kubelet and the plugins, and is free again when the Pods have ended.
func TestResourcesOfTheirOwn(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("this machine has one CPU, which no container can have alone")
	}
	c := newCluster(t)
	config := filepath.Join(t.TempDir(), "kubelet.yaml")
	require.NoError(t, os.WriteFile(config, []byte(managersConfig), 0o600))
	flags := []string{"--unsafe-no-fsync", "--kubelet-config", config, "--kube-reserved", "memory=400Mi", "--eviction-hard", "memory.available<100Mi"}
	c.up(flags...)
	importShell(t, c)
	plugin, driver := c.startSamplePlugin(t), c.startTestDriver(t)
	c.apply(c.claimObjects())
	all := cpusOfMachine(t)

	c.apply(podManifest("shared", shell(sleepScript, ""), ""))
	c.waitPod("name=shared", "running", isReady)
	c.waitAllowed("shared", all)
	c.apply(podManifest("own", shell(sleepScript, guaranteed), ""))
	own := c.waitPod("name=own", "running", isReady)
	cpus, quota := c.allowed("own")
	require.Equal(t, 1, cpus.Size(), "CPUs %s", cpus)
	require.False(t, cpus.Contains(0), "it is reserved")
	require.Contains(t, []string{"-1", "max"}, quota, "no quota limits the time on CPUs of its own")
	c.waitAllowed("shared", all.Difference(cpus))

	c.waitDevices(2)
	c.apply(podManifest("device", shell("ls /tmp; "+sleepScript, withDevice), ""))
	device := c.waitPod("name=device", "running", isReady)
	require.Contains(t, c.mustRun("kubectl", "exec", "device", "--", "/bin/busybox", "ls", "/tmp"), "Dev-")
	c.apply(podManifest("claim", shell(sleepScript, withClaim), claimed))
	claim := c.waitPod("name=claim", "running", isReady)
	require.Contains(t, c.mustRun("kubectl", "exec", "claim", "--", "/bin/busybox", "env"), "_one=true", "what the driver's CDI file adds")
	c.checkPodResources(cpus)
	c.checkRefusal()

	for _, kill := range []struct {
		name string
		do   func()
	}{
		{"the kubelet", c.killNode}, {"the device plugin", plugin.kill}, {"the DRA driver", driver.kill},
		{"all", func() { plugin.kill(); driver.kill(); c.killNode() }},
		{"a kubelet whose states are damaged", func() { c.killNodeAndDamageItsStates(t) }},
	} {
		kill.do()
		c.waitDevices(2)
		c.apply(podManifest("after", shell("true", ""), `"restartPolicy": "Never"`))
		c.waitPod("name=after", "over", finished) // the kubelet works
		c.mustRun("kubectl", "delete", "pod", "after", "--timeout=2m")
		for _, before := range []*corev1.Pod{own, device, claim} {
			after := c.waitPod("name="+before.Name, "running", isReady)
			require.Equal(t, before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID, "after the end of %s", kill.name)
		}
		c.waitAllowed("own", cpus)
		c.waitAllowed("shared", all.Difference(cpus))
		c.checkPodResources(cpus)
	}
	c.checkManagerMetrics(t)
	c.mustRun("kubectl", "delete", "pod", "own", "device", "claim", "--timeout=2m")
	c.waitAllowed("shared", all)
	c.checkNothingIsAssigned(t)
	plugin.stop()
	driver.stop()
	c.stop()
	require.Empty(t, c.leftovers())
}

// killNodeAndDamageItsStates damages what the kubelet knows of CPUs, memory and claims, but for devices, whose containers would lose them.
func (c *cluster) killNodeAndDamageItsStates(t *testing.T) {
	var files []string
	for _, name := range []string{"cpu_manager_state", "memory_manager_state", "dra_manager_state"} {
		file := filepath.Join(c.dataDir, "kubelet", name)
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.NoError(t, os.Truncate(file, info.Size()/2))
		files = append(files, file)
	}
	c.killNode()
	for _, file := range files {
		require.NoError(t, c.poll(func(context.Context) bool {
			aside, err := statefile.Asides(file)
			return err == nil && len(aside) == 1
		}), "%s is not set aside", file)
	}
	require.NoError(t, c.poll(func(context.Context) bool {
		claim, err := c.readPodResources("claim")
		return err == nil && len(claim.DynamicResources) == 1
	}), "the claim is not prepared again")
}

// checkRefusal requests more devices than are free, past the scheduler, and reads why the node refuses that.
func (c *cluster) checkRefusal() {
	c.t.Helper()
	c.apply(podManifest("refused", shell("true", strings.ReplaceAll(withDevice, `"1"`, `"2"`)), `"nodeName": "`+homeNode+`"`))
	c.waitPod("name=refused", "refused", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodFailed })
	out, _ := c.run("explain", "pod", "refused")
	require.Contains(c.t, strings.Join(strings.Fields(out), " "), "requested number of devices unavailable for "+sampleResource+". Requested: 2, Available: 1 (Dev-")
	c.mustRun("kubectl", "delete", "pod", "refused", "--timeout=2m")
}

func cpusOfMachine(t *testing.T) cpuset.CPUSet {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	require.NoError(t, err)
	all, err := cpuset.Parse(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	return all
}

func (c *cluster) checkPodResources(cpus cpuset.CPUSet) {
	c.t.Helper()
	own := c.podResources("own")
	require.Equal(c.t, []int64{int64(cpus.List()[0])}, own.CpuIds)
	require.Len(c.t, own.Memory, 1)
	require.Equal(c.t, uint64(64<<20), own.Memory[0].Size)
	device := c.podResources("device")
	require.Len(c.t, device.Devices, 1)
	require.Equal(c.t, sampleResource, device.Devices[0].ResourceName)
	claim := c.podResources("claim")
	require.Len(c.t, claim.DynamicResources, 1)
	require.Equal(c.t, c.testDriver(), claim.DynamicResources[0].ClaimResources[0].DriverName)
	require.Empty(c.t, c.podResources("shared").CpuIds)
}

func (c *cluster) checkManagerMetrics(t *testing.T) {
	metrics := c.mustRun("kubectl", "get", "--raw", "/api/v1/nodes/"+homeNode+"/proxy/metrics")
	for _, want := range []string{
		"kubelet_cpu_manager_exclusive_cpu_allocation_count 1", `kubelet_cpu_manager_allocation_per_numa{numa_node="0"} 1`,
		`dra_resource_claims_in_use{driver_name="<any>"} `, "kubelet_topology_manager_admission_requests_total ",
		`kubelet_device_plugin_registration_total{resource_name="example.com/resource"} `,
	} {
		require.Contains(t, metrics, want)
	}
}

// checkNothingIsAssigned waits until the state files have no assignment, and the claims are gone.
func (c *cluster) checkNothingIsAssigned(t *testing.T) {
	kubelet := filepath.Join(c.dataDir, "kubelet")
	for _, state := range []struct{ path, never string }{
		{"cpu_manager_state", `"entries"`}, {"memory_manager_state", `"entries"`}, {"device-plugins/kubelet_internal_checkpoint", `"PodUID"`},
		{"dra_manager_state", "ClaimUID"},
	} {
		var content []byte
		require.NoError(t, c.poll(func(context.Context) bool {
			var err error
			content, err = os.ReadFile(filepath.Join(kubelet, state.path))
			return err == nil && !strings.Contains(string(content), state.never)
		}), "%s: %s", state.path, content)
	}
	claims := c.client().ResourceV1().ResourceClaims("default")
	require.NoError(t, c.poll(func(ctx context.Context) bool {
		list, err := claims.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	}))
}

// removeCDIFiles removes what the driver forgets when it is killed.
func (c *cluster) removeCDIFiles() {
	files, _ := filepath.Glob("/var/run/cdi/" + c.testDriver() + "*")
	for _, file := range files {
		_ = os.Remove(file)
	}
}
