//go:build vm

package vm

import (
	"context"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	kubeadmDir = flag.String("kubeadm", "../bin/kubeadm", "the directory of conformance/build-kubeadm.sh")
	saved      = flag.String("saved", "", "directory that keeps the disk of the first machine after kubeadm init; a disk there is used in place of an init")
)

// imageStore is the directory of the share that imagestore.sh makes.
const imageStore = "image-store"

// The machines' addresses in their network, and the Pods' networks on them.
const (
	firstAddress  = "192.168.50.1"
	secondAddress = "192.168.50.2"
	firstPods     = "10.244.0.0/24"
	secondPods    = "10.244.1.0/24"
)

// kubeadmConfig is the configuration of the cluster. The machines are slow, which the timeouts consider. Keys of the default algorithm
// are slow there: the API server opens some two hundred TLS connections to etcd before it is ready.
const kubeadmConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
localAPIEndpoint: {advertiseAddress: ` + firstAddress + `}
nodeRegistration: {name: first}
timeouts: {controlPlaneComponentHealthCheck: 20m, kubeletHealthCheck: 10m, kubernetesAPICall: 20m, tlsBootstrap: 20m}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
kubernetesVersion: VERSION
encryptionAlgorithm: ECDSA-P256
networking: {podSubnet: 10.244.0.0/16}
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: systemd
runtimeRequestTimeout: 10m
` + shutdownPeriods + `---
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
`

// webDeployment writes to its log, serves a page, and has a shell.
const webDeployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: web
        image: IMAGE
        command: [sh, -c, "mkdir /www && echo hello from $(hostname) > /www/index.html && echo serving && exec httpd -f -p 8080 -h /www"]
        readinessProbe: {httpGet: {path: /, port: 8080}}
`

// TestKubeadm builds a cluster of two machines with upstream's kubeadm, whose kubelet is ours, and stops and starts things. Each step
// needs the cluster of the first machine only: with -saved a single one can be run, as in -run '^TestKubeadm$/^join$'.
func TestKubeadm(t *testing.T) {
	network, err := NewNetwork(t.Context(), filepath.Join(t.TempDir(), "net"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, network.Close()) })
	files := kubeadmShare(t)
	first := startInitialised(t, network, files)
	deployWeb(t, first)
	t.Run("streams", func(t *testing.T) { requireWeb(t, first) })
	t.Run("restart", func(t *testing.T) { restartKubelet(t, first) })
	t.Run("join", func(t *testing.T) { joinSecond(t, first, network, files) })
	t.Run("reboot", func(t *testing.T) {
		require.NoError(t, first.Shutdown(t.Context()))
		require.NoError(t, first.Boot(t.Context()))
		requireWeb(t, first)
		waitFor(t, first, 600, allReady)
	})
}

// restartKubelet restarts the kubelet, which must not restart a container.
func restartKubelet(t *testing.T, m *Machine) {
	t.Helper()
	before := output(t, m, runningContainers)
	output(t, m, "systemctl restart kubelet")
	waitFor(t, m, 300, "busybox wget -q -O - http://127.0.0.1:10248/healthz")
	require.Equal(t, before, output(t, m, runningContainers), "the restart of the kubelet must not restart a container")
	requireWeb(t, m)
}

// joinSecond joins a second machine, which then runs a Pod of the Deployment, and removes it again.
func joinSecond(t *testing.T, first *Machine, network *Network, files Share) {
	t.Helper()
	second := startKubeadmMachine(t, machineOptions(network, "second", secondAddress, files), secondPods)
	join := output(t, first, "kubeadm token create --print-join-command")
	logged(t, second, strings.TrimSpace(join)+" --node-name second")
	waitFor(t, first, 600, kubectl+"wait --for=condition=Ready --timeout=5s node/second")
	output(t, first, "ip route add "+secondPods+" via "+secondAddress)
	output(t, second, "ip route add "+firstPods+" via "+firstAddress)
	output(t, first, kubectl+"scale deployment/web --replicas=2")
	waitFor(t, first, 600, kubectl+"wait --for=jsonpath={.status.readyReplicas}=2 --timeout=5s deployment/web")
	pod := output(t, first, kubectl+"get pods -l app=web --field-selector spec.nodeName=second -o name")
	require.Equal(t, "serving", output(t, first, kubectl+"logs "+pod))
	require.Contains(t, output(t, first, kubectl+"exec "+pod+" -- cat /www/index.html"), "hello from web-")
	require.NoError(t, second.Shutdown(t.Context()))
	output(t, first, kubectl+"delete node second && "+kubectl+"scale deployment/web --replicas=1")
}

const kubectl = "KUBECONFIG=/etc/kubernetes/admin.conf kubectl --request-timeout=60s "

// allReady waits until the Pods of the control plane, of kube-proxy and of CoreDNS are ready. Those that ended with the machine stay
// in the API as Failed beside the ones that replace them.
const allReady = kubectl + "-n kube-system wait --for=condition=Ready --timeout=5s pod --field-selector=status.phase!=Failed"

// runningContainers prints each container's first process and its start, by which a container that was restarted differs.
const runningContainers = `find /sys/fs/cgroup/kubepods.slice -name 'cri-containerd-*.scope' | sort | while read -r scope; do
	pid=$(head -n 1 $scope/cgroup.procs); echo "${scope##*/} $pid $(cut -d ' ' -f 22 /proc/$pid/stat)"; done`

// kubeadmShare makes the disk with all that the machines get: programs, and images.
func kubeadmShare(t *testing.T) Share {
	t.Helper()
	dir := guestShare(t, filepath.Join(*kubeadmDir, "programs", "kubeadm"))
	runHost(t, "sh", "imagestore.sh", *programs, filepath.Join(*kubeadmDir, "images"), filepath.Join(dir, imageStore))
	files, err := Share{Dir: dir, Path: share}.WithDisk(t.Context(), filepath.Join(t.TempDir(), "share.img"))
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(dir)) // it is as large as the disk
	return files
}

func machineOptions(network *Network, name, address string, files Share) Options {
	return Options{Name: name, MemoryMiB: 4096, Network: network, Address: address + "/24", Shares: []Share{files}}
}

// startInitialised returns a machine that is the control plane of a cluster.
func startInitialised(t *testing.T, network *Network, files Share) *Machine {
	t.Helper()
	options := machineOptions(network, "first", firstAddress, files)
	if *saved == "" {
		m := startKubeadmMachine(t, options, firstPods)
		initCluster(t, m)
		return m
	}
	disk := filepath.Join(*saved, "first.qcow2")
	if _, err := os.Stat(disk); errors.Is(err, fs.ErrNotExist) {
		m := startKubeadmMachine(t, options, firstPods)
		initCluster(t, m)
		require.NoError(t, os.MkdirAll(*saved, 0o755))
		require.NoError(t, m.Shutdown(t.Context()))
		require.NoError(t, m.SaveRoot(t.Context(), disk))
		require.NoError(t, m.Boot(t.Context()))
		return m
	}
	options.Root = disk
	m := start(t, options)
	showOnFailure(t, m)
	// The kubelet of the saved disk may be an older one.
	output(t, m, "systemctl stop kubelet && cp "+share+"/kubelet /usr/bin/ && systemctl start kubelet")
	return m
}

// showOnFailure shows what the kubelet and the cluster say if the test has failed.
func showOnFailure(t *testing.T, m *Machine) {
	t.Helper()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.Output(context.WithoutCancel(t.Context()), "journalctl --no-pager -n 200 -u kubelet; "+kubectl+"get pods -A -o wide; "+kubectl+"get events -A"))
		}
	})
}

// startKubeadmMachine boots a machine that has what kubeadm needs. pods is its Pods' network.
func startKubeadmMachine(t *testing.T, options Options, pods string) *Machine {
	t.Helper()
	m := start(t, options)
	showOnFailure(t, m)
	images, err := os.ReadFile(filepath.Join(*kubeadmDir, "images.txt"))
	require.NoError(t, err)
	sandbox := ""
	for name := range strings.FieldsSeq(string(images)) {
		if strings.Contains(name, "/pause:") {
			sandbox = name
		}
	}
	output(t, m, "cp -a "+share+"/"+imageStore+" /var/lib/containerd")
	installContainerd(t, m, share, pods, sandbox)
	installKubelet(t, m, share, "10-kubeadm.conf")
	// CoreDNS does not start without a server to forward to; this one is of the addresses for documentation.
	output(t, m, "echo nameserver 192.0.2.1 > /etc/resolv.conf")
	// The machines have two networks, so the kubelet's address is named; and their names are those of the certificates.
	output(t, m, "cp "+share+"/kubeadm /usr/bin/ && echo KUBELET_EXTRA_ARGS=--node-ip="+strings.TrimSuffix(options.Address, "/24")+" > /etc/default/kubelet && printf '%s\\n' '"+firstAddress+" first' '"+secondAddress+" second' >> /etc/hosts")
	return m
}

// initCluster makes the machine a control plane.
func initCluster(t *testing.T, m *Machine) {
	t.Helper()
	version, err := os.ReadFile(filepath.Join(*programs, "conformance", "upstream-version"))
	require.NoError(t, err)
	config := strings.Replace(kubeadmConfig, "VERSION", strings.TrimSpace(string(version)), 1)
	require.NoError(t, m.Run(t.Context(), "cat > /root/kubeadm.yaml", IO{Stdin: strings.NewReader(config)}))
	logged(t, m, "kubeadm init --config /root/kubeadm.yaml")
	waitFor(t, m, 600, kubectl+"wait --for=condition=Ready --timeout=5s node/first")
}

// deployWeb has the control plane's machine run Pods, one of them of a Deployment.
func deployWeb(t *testing.T, m *Machine) {
	t.Helper()
	waitFor(t, m, 600, kubectl+"get --raw /readyz")
	output(t, m, kubectl+"taint node first --overwrite node-role.kubernetes.io/control-plane:NoSchedule && "+
		kubectl+"taint node first node-role.kubernetes.io/control-plane-")
	image := output(t, m, share+"/berth images --socket /run/containerd/containerd.sock | grep -o '^[^ ]*/busybox:[^ ]*'")
	deployment := strings.Replace(webDeployment, "IMAGE", image, 1)
	require.NoError(t, m.Run(t.Context(), kubectl+"apply -f -", IO{Stdin: strings.NewReader(deployment)}))
	waitFor(t, m, 600, kubectl+"wait --for=condition=Available --timeout=5s deployment/web")
	waitFor(t, m, 600, allReady)
}

// requireWeb reads the log of the Deployment's Pod, runs a command in it, and reads its page through a forwarded port.
func requireWeb(t *testing.T, m *Machine) {
	t.Helper()
	// After a reboot the API server shows for a while that all is as it was before.
	page := waitFor(t, m, 1200, kubectl+"exec deployment/web -- cat /www/index.html")
	require.Equal(t, "serving", output(t, m, kubectl+"logs deployment/web"))
	require.Contains(t, page, "hello from web-")
	require.Equal(t, page, output(t, m, kubectl+`port-forward deployment/web 18080:8080 >/dev/null & trap "kill $!" EXIT
		for i in $(seq 60); do busybox wget -q -O - http://127.0.0.1:18080/ && exit 0; sleep 1; done; exit 1`))
}

// logged runs a script and shows what it prints.
func logged(t *testing.T, m *Machine, script string) {
	t.Helper()
	t.Log(script)
	require.NoError(t, m.Run(t.Context(), script, IO{Stdout: t.Output(), Stderr: t.Output()}))
}
