//go:build integration

package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/cpuset"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/up/containerd"
)

var (
	resourceLives   = flag.Int("resource-lives", 0, "how many Pods TestResourcesSurviveWhateverDies runs")
	upstreamKubelet = flag.String("upstream-kubelet", "", "upstream's kubelet, for TestKubeletsAreExchanged")
)

// kubeletConfig is a configuration that Berth's kubelet and upstream's read alike, for the node of a cluster that has none.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%[1]s/containerd.sock
cgroupRoot: /berth-%[2]s
cgroupDriver: cgroupfs
podLogsDir: %[3]s/log/pods
failCgroupV1: false
failSwapOn: false
address: %[4]s
healthzPort: 0
tlsCertFile: %[3]s/pki/kubelet-server.crt
tlsPrivateKeyFile: %[3]s/pki/kubelet-server.key
authentication: {x509: {clientCAFile: %[3]s/pki/ca.crt}}
kubeReserved: {memory: 400Mi}
evictionHard: {memory.available: 100Mi, nodefs.available: 1%%, nodefs.inodesFree: 1%%, imagefs.available: 1%%, imagefs.inodesFree: 1%%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
cpuManagerPolicy: static
reservedSystemCPUs: "0"
memoryManagerPolicy: Static
reservedMemory: [{numaNode: 0, limits: {memory: 500Mi}}]
topologyManagerPolicy: best-effort
`

// ownedNode is a cluster whose kubelet, device plugin and DRA driver are processes of their own.
type ownedNode struct {
	*cluster
	t                       *testing.T
	client                  *kubernetes.Clientset
	kubelet, plugin, driver *daemon
}

func newOwnedNode(t *testing.T) *ownedNode {
	n := &ownedNode{cluster: newCluster(t), t: t}
	n.launch("--unsafe-no-fsync", "--without", "kubelet")
	n.out.waitFor(t, "kube-controller-manager    ready", n.ended)
	config := fmt.Sprintf(kubeletConfig, n.runDir(), n.id(), n.dataDir, n.gateway())
	require.NoError(t, os.WriteFile(n.kubeletConfigPath(), []byte(config), 0o600))
	n.startKubelet(n.berth, "kubelet")
	n.out.waitFor(t, "is ready after", n.ended)
	n.client = n.cluster.client()
	importShell(t, n.cluster)
	n.plugin, n.driver = n.startSamplePlugin(t), n.startTestDriver(t)
	n.apply(n.claimObjects())
	n.waitDevices(2)
	return n
}

func (n *ownedNode) kubeletConfigPath() string { return filepath.Join(n.dataDir, "kubelet.yaml") }

// startKubelet starts Berth's kubelet or another one, by its command.
func (n *ownedNode) startKubelet(command ...string) {
	n.kubelet = startDaemon(n.t, "kubelet", filepath.Join(n.dataDir, "log"), append(command,
		"--config", n.kubeletConfigPath(), "--kubeconfig", filepath.Join(n.dataDir, "kubeconfigs", "node.kubeconfig"),
		"--root-dir", filepath.Join(n.dataDir, "kubelet"), "--hostname-override", homeNode, "--node-ip", n.gateway())...)
}

// TestResourcesSurviveWhateverDies runs Pods with CPUs, devices and claims of their own while the kubelet, the plugin, the driver and
// containerd are killed. At no time has anything two owners, and at the end all is free.
func TestResourcesSurviveWhateverDies(t *testing.T) {
	if *resourceLives == 0 {
		t.Skip("this test takes some seconds a Pod: run make resource-lives")
	}
	n := newOwnedNode(t)
	watch := n.watchOwners()
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	var reached, refused atomic.Int64
	began := time.Now()
	for number := 0; number < *resourceLives; {
		var lives sync.WaitGroup
		for range 3 + random.IntN(3) {
			number++
			pod, early, after := n.randomPod(random, number), random.IntN(4) == 0, time.Duration(random.IntN(2500))*time.Millisecond
			lives.Go(func() {
				reached.Add(1)
				if n.live(pod, early, after) {
					refused.Add(1)
				}
			})
		}
		for range random.IntN(4) {
			time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
			n.killOne(random.IntN(4))
		}
		lives.Wait()
		require.False(t, t.Failed(), "after %d lives", reached.Load())
	}
	watch()
	t.Logf("%d lives in %s, %d refused; kills: kubelet %d, plugin %d, driver %d", reached.Load(), time.Since(began).Round(time.Second),
		refused.Load(), n.kubelet.kills, n.plugin.kills, n.driver.kills)
	n.waitDevices(2)
	n.checkNothingIsAssigned(t)
	n.apply(podManifest("last", shell(sleepScript, ""), ""))
	n.waitPod("name=last", "running", isReady)
	n.waitAllowed("last", cpusOfMachine(t))
	n.mustRun("kubectl", "delete", "pod", "last", "--timeout=2m")
}

func (n *ownedNode) killOne(which int) {
	switch which {
	case 0:
		n.kubelet.kill()
	case 1:
		n.plugin.kill()
	case 2:
		n.driver.kill()
	default:
		for pid, command := range n.processes() {
			if isProgram(command, "containerd") {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may be starting again just now
			}
		}
	}
}

// randomPod returns a Pod with some of: a CPU, a device, a claim.
func (n *ownedNode) randomPod(random *rand.Rand, number int) *corev1.Pod {
	list := corev1.ResourceList{}
	c := corev1.Container{
		Name: "main", Image: shellImage, ImagePullPolicy: corev1.PullNever, Command: []string{"/bin/busybox", "sh", "-c", sleepScript},
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("life-", number), Namespace: "default"},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: ptr.To(int64(1)), RestartPolicy: corev1.RestartPolicyAlways},
	}
	kind := random.IntN(6)
	if kind <= 1 || kind == 5 {
		list[corev1.ResourceCPU], list[corev1.ResourceMemory] = resource.MustParse("1"), resource.MustParse("32Mi")
	}
	if kind == 2 || kind == 5 {
		list[sampleResource] = resource.MustParse("1")
	}
	if kind == 3 {
		pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "mine", ResourceClaimTemplateName: ptr.To("template")}}
		c.Resources.Claims = []corev1.ResourceClaim{{Name: "mine"}}
	}
	c.Resources.Limits = list
	pod.Spec.Containers = []corev1.Container{c}
	return pod
}

// live runs a Pod until it is ready, or for a short time, and deletes it. It reports whether the node has refused it.
func (n *ownedNode) live(pod *corev1.Pod, early bool, after time.Duration) (refused bool) {
	ctx, cancel := context.WithTimeout(n.t.Context(), 2*waitTimeout)
	defer cancel()
	pods := n.client.CoreV1().Pods(pod.Namespace)
	if _, err := pods.Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		n.t.Errorf("create Pod %s: %v", pod.Name, err)
		return false
	}
	if early {
		time.Sleep(after) // deleted at any moment of its start
	} else if !waitUntil(ctx, func() bool {
		got, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		refused = err == nil && got.Status.Phase == corev1.PodFailed
		return err == nil && (refused || isReady(got))
	}) {
		out, _ := n.run("explain", "pod", pod.Name)
		n.t.Errorf("Pod %s does not run: %s", pod.Name, out)
	}
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
		n.t.Errorf("delete Pod %s: %v", pod.Name, err)
	}
	if !waitUntil(ctx, func() bool {
		_, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}) {
		out, _ := n.run("explain", "pod", pod.Name)
		n.t.Errorf("Pod %s is not gone: %s", pod.Name, out)
	}
	return refused
}

// watchOwners fails the test if a CPU or a device has two owners at any time until the result is called.
func (n *ownedNode) watchOwners() (stop func()) {
	ctx, cancel := context.WithCancel(n.t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for samples := 0; ; samples++ {
			if what := errors.Join(n.sharedCPUs(), n.sharedDevices()); what != nil {
				n.t.Errorf("%s: %v", time.Now().Format(time.StampMilli), what)
				return
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				n.t.Logf("%d samples of who has what", samples)
				return
			}
		}
	})
	return func() { cancel(); watching.Wait() }
}

// place is where the processes of a container may run.
type place struct {
	cgroup    string
	cpus      cpuset.CPUSet
	processes string
	exclusive bool
}

// placeOf reads where the processes of a container may run; ok is false if it has none, other than a sandbox's and the runtime's own.
func placeOf(cgroup string) (p place, ok bool) {
	text, err := os.ReadFile(filepath.Join(cgroup, "cpuset.cpus"))
	if err != nil {
		return p, false
	}
	p = place{cgroup: cgroup, processes: programs(cgroup), exclusive: filepath.Base(filepath.Dir(filepath.Dir(cgroup))) == "kubepods"}
	p.cpus, err = cpuset.Parse(strings.TrimSpace(string(text)))
	return p, err == nil && p.processes != "" && !p.cpus.IsEmpty()
}

// sharedCPUs returns an error if a container of a Guaranteed Pod, which has CPUs of its own, shares them with another.
func (n *ownedNode) sharedCPUs() error {
	root := filepath.Join("/sys/fs/cgroup/cpuset", "berth-"+n.id(), "kubepods")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		root = filepath.Join("/sys/fs/cgroup", "berth-"+n.id(), "kubepods")
	}
	var places []place
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || len(entry.Name()) != 64 { // the cgroup of a container
			return nil
		}
		if p, ok := placeOf(path); ok {
			places = append(places, p)
		}
		return nil
	})
	for _, p := range places {
		for _, q := range places {
			if p.exclusive && p.cgroup != q.cgroup && sharedNow(p.cgroup, q.cgroup) {
				return fmt.Errorf("%s (%s) has CPUs %s, and %s (%s) has CPUs %s", p.cgroup, p.processes, p.cpus, q.cgroup, q.processes, q.cpus)
			}
		}
	}
	return nil
}

// sharedNow reports whether two containers had the same CPUs at the same time: one of them is read before and after the other.
func sharedNow(a, b string) bool {
	before, first := placeOf(a)
	between, second := placeOf(b)
	after, third := placeOf(a)
	return first && second && third && before.cpus.Equals(after.cpus) && !between.cpus.Intersection(before.cpus).IsEmpty()
}

// programs returns the names of the processes of a cgroup other than a sandbox's and those of the container runtime, which become a
// container when they have set its limits.
func programs(cgroup string) string {
	pids, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	if err != nil {
		return ""
	}
	var names []string
	for _, pid := range strings.Fields(string(pids)) {
		text, _ := os.ReadFile(filepath.Join("/proc", pid, "comm"))
		name := strings.TrimSpace(string(text))
		program, err := os.Readlink(filepath.Join("/proc", pid, "exe")) // which fails for a process that has ended
		if err == nil && name != "pause" && !strings.HasPrefix(name, "runc") && !strings.Contains(program, "runc") &&
			filepath.Base(program) != containerd.ShimProgram(containerd.RuntimeBerth) {
			names = append(names, name+" "+program)
		}
	}
	return strings.Join(names, ", ")
}

// sharedDevices returns an error if two containers have the same device.
func (n *ownedNode) sharedDevices() error {
	content, err := os.ReadFile(filepath.Join(n.dataDir, "kubelet", "device-plugins", "kubelet_internal_checkpoint"))
	if err != nil {
		return nil // there is none yet
	}
	var file struct {
		Data struct {
			PodDeviceEntries []struct {
				PodUID    string
				DeviceIDs map[string][]string
			}
		}
	}
	if err := json.NewDecoder(bytes.NewReader(content)).Decode(&file); err != nil {
		return fmt.Errorf("read the device manager's state: %w", err)
	}
	owners := map[string]string{}
	for _, entry := range file.Data.PodDeviceEntries {
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				if other, taken := owners[id]; taken && other != entry.PodUID {
					return fmt.Errorf("device %s belongs to the Pods %s and %s", id, other, entry.PodUID)
				}
				owners[id] = entry.PodUID
			}
		}
	}
	return nil
}

const upstreamDevicePlugins = "/var/lib/kubelet/device-plugins"

// TestKubeletsAreExchanged replaces Berth's kubelet by upstream's and back, while Pods have CPUs, devices and claims of their own. They
// run on, with the same assignments.
func TestKubeletsAreExchanged(t *testing.T) {
	if *upstreamKubelet == "" {
		t.Skip("this test needs upstream's kubelet: run make exchange-kubelets")
	}
	n := newOwnedNode(t)
	// Upstream's kubelet has its device plugins and their state here, whatever its root directory is.
	require.NoError(t, os.MkdirAll("/var/lib/kubelet", 0o755))
	require.NoError(t, os.Symlink(filepath.Join(n.dataDir, "kubelet", "device-plugins"), upstreamDevicePlugins),
		"%s belongs to a kubelet of this machine", upstreamDevicePlugins)
	t.Cleanup(func() { require.NoError(t, os.Remove(upstreamDevicePlugins)) })
	n.apply(podManifest("shared", shell(sleepScript, ""), ""))
	n.apply(podManifest("own", shell(sleepScript, guaranteed), ""))
	n.apply(podManifest("device", shell(sleepScript, withDevice), ""))
	n.apply(podManifest("claim", shell(sleepScript, withClaim), claimed))
	containers, names := map[string]string{}, []string{"shared", "own", "device", "claim"}
	for _, name := range names {
		containers[name] = n.waitPod("name="+name, "running", isReady).Status.ContainerStatuses[0].ContainerID
	}
	cpus, _ := n.allowed("own")
	shared := cpusOfMachine(t).Difference(cpus)
	n.waitAllowed("shared", shared)
	before := n.assignments()
	for _, step := range []struct {
		name    string
		command []string
	}{{"upstream's", []string{*upstreamKubelet}}, {"Berth's", []string{n.berth, "kubelet"}}} {
		n.kubelet.stop()
		n.startKubelet(step.command...)
		n.waitDevices(2)
		n.apply(podManifest("after", shell("true", ""), `"restartPolicy": "Never"`))
		n.waitPod("name=after", "over", finished)
		n.mustRun("kubectl", "delete", "pod", "after", "--timeout=2m")
		for _, name := range names {
			pod := n.waitPod("name="+name, "running", isReady)
			require.Equal(t, containers[name], pod.Status.ContainerStatuses[0].ContainerID, "with %s kubelet", step.name)
			require.Zero(t, pod.Status.ContainerStatuses[0].RestartCount)
		}
		n.waitAllowed("own", cpus)
		n.waitAllowed("shared", shared)
		require.Equal(t, before, n.assignments(), "with %s kubelet", step.name)
	}
	n.mustRun("kubectl", "delete", "pod", "own", "device", "claim", "shared", "--timeout=2m")
	n.checkNothingIsAssigned(t)
}

// assignments returns what podresources says of all Pods with something of their own.
func (n *ownedNode) assignments() string {
	n.t.Helper()
	all := ""
	for _, name := range []string{"own", "device", "claim"} {
		all += name + ": " + n.podResources(name).String() + "\n"
	}
	return strings.Join(strings.Fields(all), " ") // the text of messages has a random number of spaces
}
