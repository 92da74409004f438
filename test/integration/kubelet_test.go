//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
)

// TestKubelet runs a link named kubelet to berth as the kubelet of a cluster, with a configuration file, a drop-in file and flags:
// it joins by a bootstrap token, runs Pods, and its restart restarts no container.
func TestKubelet(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	client := c.client()
	k := newTestKubelet(t, fmt.Sprintf("authentication: {x509: {clientCAFile: %q}}\nrotateCertificates: true\nserverTLSBootstrap: true\nmaxPods: 17\n",
		filepath.Join(c.dataDir, "pki", "ca.crt")))
	allowJoining(t, client)
	bootstrap, kubeconfig := filepath.Join(k.node.dir, "bootstrap.kubeconfig"), filepath.Join(k.node.dir, "node.kubeconfig")
	c.writeToken(bootstrap, tokenID+"."+tokenSecret)
	k.write("conf.d/10-limits.conf", kubeletHeader+"maxPods: 18\nnodeStatusMaxImages: 1\n")
	args := []string{"--bootstrap-kubeconfig", bootstrap, "--kubeconfig", kubeconfig, "--hostname-override", k.node.name,
		"--node-ip", k.node.address(), "--config-dir", k.path("conf.d"), "--node-labels", "disk=fast", "--register-with-taints", "only=test:NoSchedule"}

	stop := k.start(args...)
	k.node.nodeReady(client)
	node, err := client.CoreV1().Nodes().Get(t.Context(), k.node.name, metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 18, node.Status.Capacity.Pods().Value(), "the drop-in file comes before the file")
	require.Equal(t, "fast", node.Labels["disk"])
	require.Contains(t, node.Spec.Taints, corev1.Taint{Key: "only", Value: "test", Effect: corev1.TaintEffectNoSchedule})
	require.LessOrEqual(t, len(node.Status.Images), 1)
	runOn(t, c, k.node, "joined")

	c.apply(podManifest("stays", shell("sleep 1000000", ""), fmt.Sprintf(`"nodeName": %q`, k.node.name)))
	isRunning := func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }
	before := c.waitPod("name=stays", "running", isRunning)
	var shown struct {
		Config kubeletconfig.KubeletConfiguration `json:"kubeletconfig"`
	}
	require.NoError(t, json.Unmarshal([]byte(readNode(t, c, k.node, k.port, "/configz")), &shown))
	require.EqualValues(t, 18, shown.Config.MaxPods)
	stop()
	k.refusesBesidePods(args...)
	stop = k.start(args...)
	defer stop()
	runOn(t, c, k.node, "again")
	after := c.waitPod("name=stays", "running", isRunning)
	require.Equal(t, before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID)
	require.Zero(t, after.Status.ContainerStatuses[0].RestartCount)
	c.mustRun("kubectl", "delete", "pod", "stays", "--grace-period=0", "--timeout=2m")

	k.refuses("does not accept its credentials", func() []string {
		wrong := k.path("wrong.kubeconfig")
		c.writeToken(wrong, "000000.0123456789abcdef")
		return []string{"--kubeconfig", wrong, "--hostname-override", "x"}
	}()...)
	other := newCluster(t)
	other.up("--unsafe-no-fsync")
	k.refuses("is it of another cluster", "--kubeconfig", mixedKubeconfig(t, c, other), "--hostname-override", "x")
}

// mixedKubeconfig returns a kubeconfig with the address of one cluster and the CA of another.
func mixedKubeconfig(t *testing.T, address, ca *cluster) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(ca.dataDir, "admin.kubeconfig"))
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "mixed.kubeconfig")
	mixed := strings.ReplaceAll(string(text), fmt.Sprintf(":%d", ca.port), fmt.Sprintf(":%d", address.port))
	require.NoError(t, os.WriteFile(path, []byte(mixed), 0o600))
	return path
}

// TestKubeletStandalone runs static Pods without an API server.
func TestKubeletStandalone(t *testing.T) {
	readOnly := freePort(t)
	k := newTestKubelet(t, fmt.Sprintf("readOnlyPort: %d\nstaticPodPath: manifests\nauthentication: {webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n",
		readOnly))
	k.write("manifests/web.json", podManifest("web", shell("sleep 1000000", ""), `"hostNetwork": true`))
	stop := k.start("--hostname-override", "alone")
	defer stop()
	k.waitStaticPod(readOnly)
	require.NoError(t, os.Remove(k.path("manifests/web.json")))
}

// waitStaticPod waits until the only Pod of the kubelet, which has this read-only port, runs.
func (k *testKubelet) waitStaticPod(readOnly int) {
	k.t.Helper()
	require.NoError(k.t, retryUntil(k.t.Context(), func() error {
		response, err := http.Get(fmt.Sprintf("http://%s:%d/pods", k.node.address(), readOnly))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		var list corev1.PodList
		if err := json.Unmarshal(text, &list); err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("the static Pod does not run yet: %s", text)
		}
		return nil
	}, nil))
}

// TestStaticPodsDoNotWaitForTheCertificate runs a static Pod on a node whose first certificate is not approved yet.
func TestStaticPodsDoNotWaitForTheCertificate(t *testing.T) {
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	client, readOnly := c.client(), freePort(t)
	allowJoining(t, client)
	require.NoError(t, client.RbacV1().ClusterRoleBindings().Delete(t.Context(), "test-approve", metav1.DeleteOptions{}))
	k := newTestKubelet(t, fmt.Sprintf("readOnlyPort: %d\nstaticPodPath: manifests\nrotateCertificates: true\n", readOnly))
	k.write("manifests/web.json", podManifest("web", shell("sleep 1000000", ""), `"hostNetwork": true`))
	bootstrap, kubeconfig := k.path("bootstrap.kubeconfig"), k.path("node.kubeconfig")
	c.writeToken(bootstrap, tokenID+"."+tokenSecret)
	defer k.start("--bootstrap-kubeconfig", bootstrap, "--kubeconfig", kubeconfig, "--hostname-override", k.node.name, "--node-ip", k.node.address())()
	k.waitStaticPod(readOnly)
	require.NoFileExists(t, kubeconfig)
	_, err := client.CoreV1().Nodes().Get(t.Context(), k.node.name, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), err)

	requests, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for i := range requests.Items {
		if len(requests.Items[i].Status.Conditions) == 0 {
			c.mustRun("kubectl", "certificate", "approve", requests.Items[i].Name)
		}
	}
	k.node.nodeReady(client)
	require.NoError(t, c.poll(func(context.Context) bool { // it is written beside the first uses of the certificate
		_, err := os.Stat(kubeconfig)
		return err == nil
	}), "there is no kubeconfig")
	c.waitPod("name=web", "ready", isReady) // the mirror Pod
	require.NoError(t, os.Remove(k.path("manifests/web.json")))
}

// TestKubeletRefusesBadInput gives a kubelet what cannot be meant.
func TestKubeletRefusesBadInput(t *testing.T) {
	k := newTestKubelet(t, "")
	for name, text := range map[string]string{
		"empty": "", "half": kubeletHeader + "authentication: {x509: {", "unknown": kubeletHeader + "maxPod: 1\n",
		"contradiction":         kubeletHeader + "serializeImagePulls: true\nmaxParallelImagePulls: 3\n",
		"unsupported":           kubeletHeader + "cpuManagerPolicy: generous\nauthentication: {webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n",
		"runtime":               kubeletHeader + "containerRuntimeEndpoint: unix:///nowhere.sock\nauthentication: {webhook: {enabled: false}}\nauthorization: {mode: AlwaysAllow}\n",
		"bad.d/10-drop-in.conf": "apiVersion: kubelet.config.k8s.io/v1beta1\n",
	} {
		k.write(name, text)
	}
	require.NoError(t, os.Mkdir(k.path("unreadable.d"), 0o755))
	require.NoError(t, os.Symlink("gone", k.path("unreadable.d/20-unreadable.conf"))) // root could read a file of any mode
	for want, args := range map[string][]string{
		"is empty": {"--config", k.path("empty")}, "yaml": {"--config", k.path("half")},
		`unknown field "maxPod"`:        {"--config", k.path("unknown")},
		"maxParallelImagePulls 3":       {"--config", k.path("contradiction")},
		`cpuManagerPolicy`:              {"--config", k.path("unsupported")},
		"/nowhere.sock":                 {"--config", k.path("runtime")},
		"10-drop-in.conf":               {"--config-dir", k.path("bad.d")},
		"20-unreadable.conf":            {"--config-dir", k.path("unreadable.d")},
		"no such file":                  {"--kubeconfig", k.path("none")},
		"unknown flag: --bogus":         {"--bogus"},
		"--cloud-provider":              {"--cloud-provider=aws"},
		"--exit-on-lock-contention":     {"--exit-on-lock-contention"},
		"it needs an API server":        {"--authorization-mode=Webhook"},
		"imageGCLowThresholdPercent":    {"--image-gc-low-threshold=90"},
		"is not an IP address":          {"--node-ip=nowhere"},
		"featureGates (--feature-gates": {"--feature-gates=NoSuchGate=true"},
	} {
		k.refuses(want, args...)
	}
}

const kubeletHeader = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// testKubelet is a link named kubelet to berth beside a containerd.
type testKubelet struct {
	t       *testing.T
	node    *testNode
	program string
	port    int
}

// newTestKubelet writes the configuration file of a kubelet that uses nothing of the machine's own one.
func newTestKubelet(t *testing.T, more string) *testKubelet {
	t.Helper()
	k := &testKubelet{t: t, node: newTestNode(t, t.TempDir()), port: freePort(t)}
	k.node.makeBridge()
	k.program = filepath.Join(k.node.dir, "kubelet-link", "kubelet")
	require.NoError(t, os.Mkdir(filepath.Dir(k.program), 0o755))
	require.NoError(t, os.Symlink(berthBinary(t), k.program))
	k.write("config.yaml", kubeletHeader+fmt.Sprintf("failCgroupV1: false\nfailSwapOn: false\naddress: %s\nport: %d\nhealthzPort: 0\n"+
		"containerRuntimeEndpoint: unix://%s\ncgroupRoot: /%s\npodLogsDir: %s\nenforceNodeAllocatable: [none]\nmakeIPTablesUtilChains: false\n"+
		"evictionHard: {memory.available: 0%%}\n", // the machine's disk is also everybody else's
		k.node.address(), k.port, k.node.runtime.Socket(), k.node.cgroup(), k.node.logs())+more)
	return k
}

// path returns the path of a file of the kubelet, those of its root directory excepted.
func (k *testKubelet) path(name string) string { return filepath.Join(k.node.dir, "etc", name) }

func (k *testKubelet) write(name, text string) {
	k.t.Helper()
	require.NoError(k.t, os.MkdirAll(filepath.Dir(k.path(name)), 0o755))
	require.NoError(k.t, os.WriteFile(k.path(name), []byte(text), 0o600))
}

// start runs the kubelet until the returned function is called, which has it end as a service manager does.
func (k *testKubelet) start(args ...string) (stop func()) {
	k.t.Helper()
	cmd := exec.Command(k.program, append([]string{"--config", k.path("config.yaml"), "--root-dir", k.node.root(), "--cert-dir", k.path("pki")}, args...)...)
	cmd.Stdout, cmd.Stderr = k.node.log, k.node.log
	require.NoError(k.t, cmd.Start())
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			k.t.Errorf("kubelet ended with %v", err)
		}
	}
	k.t.Cleanup(stop)
	return stop
}

// refuses requires that the kubelet does not start with these flags: it prints one line, ends with 1, and creates nothing.
func (k *testKubelet) refuses(want string, args ...string) {
	k.t.Helper()
	root := filepath.Join(k.t.TempDir(), "root")
	k.refusesIn(root, want, args...)
	require.NoFileExists(k.t, root)
	require.NoDirExists(k.t, root)
}

// refusesBesidePods requires that a kubelet that was stopped, and whose Pods still run, is not started with bad input, and that its
// directory stays as it is. args are its flags.
func (k *testKubelet) refusesBesidePods(args ...string) {
	k.t.Helper()
	k.write("broken.d/10-half.conf", kubeletHeader+"authentication: {x509: {")
	k.write("contradiction.d/10-pulls.conf", kubeletHeader+"serializeImagePulls: true\nmaxParallelImagePulls: 3\n")
	before := tree(k.t, k.node.root())
	for want, more := range map[string][]string{
		"10-half.conf": {"--config-dir", k.path("broken.d")}, "maxParallelImagePulls 3": {"--config-dir", k.path("contradiction.d")},
		"--exit-on-lock-contention": {"--exit-on-lock-contention"}, "no such file": {"--config", k.path("none")},
	} {
		k.refusesIn(k.node.root(), want, append(append([]string{"--config", k.path("config.yaml")}, args...), more...)...)
	}
	require.Equal(k.t, before, tree(k.t, k.node.root()))
}

// tree returns the files below a directory with their sizes and the times of their last changes, but for what Pods write into.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "volumes" || entry.Name() == "containers") {
			return fs.SkipDir
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		files[path] = fmt.Sprint(info.Mode(), info.Size(), info.ModTime())
		return nil
	}))
	return files
}

// refusesIn requires that the kubelet with this root directory prints one line and ends with 1.
func (k *testKubelet) refusesIn(root, want string, args ...string) {
	k.t.Helper()
	hasConfig := false
	for _, arg := range args {
		hasConfig = hasConfig || arg == "--config"
	}
	if !hasConfig {
		args = append([]string{"--config", k.path("config.yaml")}, args...)
	}
	cmd := exec.Command(k.program, append(args, "--root-dir", root, "--cert-dir", filepath.Join(root, "pki"))...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	require.True(k.t, errors.As(err, &exit), "%v: %s", args, stderr.String())
	require.Equal(k.t, 1, exit.ExitCode(), stderr.String())
	var lines []string
	for line := range strings.Lines(stderr.String()) {
		if !strings.HasPrefix(line, "Flag --") && !strings.Contains(line, "level=WARN") {
			lines = append(lines, line)
		}
	}
	require.Len(k.t, lines, 1, stderr.String())
	require.Contains(k.t, lines[0], want)
}
