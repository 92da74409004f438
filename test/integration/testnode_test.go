//go:build integration

package integration

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/imagestore"
	"github.com/berth-dev/berth/internal/testnet"
	"github.com/berth-dev/berth/kubelet/agent"
	"github.com/berth-dev/berth/kubelet/eviction"
	"github.com/berth-dev/berth/up/containerd"
)

// testNode is a second node of a cluster: a containerd of its own, and a kubelet that runs in this process, so that a test
// can put proxies between it and its dependencies.
type testNode struct {
	t       testing.TB
	name    string
	dir     string // of all files of the node
	runtime containerd.Config
	daemon  *exec.Cmd
	log     *os.File

	kubelet *agent.Agent
	stop    func()
}

// newTestNode starts the containerd of a node whose Pods have addresses of its own network. dir is for its files.
func newTestNode(t testing.TB, dir string) *testNode {
	t.Helper()
	network := testnet.Claim(t)
	bin := filepath.Dir(berthBinary(t))
	run := runDir(t, "berth-a")
	pods := testnet.Prefix(network)
	a := &testNode{t: t, name: fmt.Sprintf("agent-%d", network), dir: dir, stop: func() {}, runtime: containerd.Config{
		Runtime: testRuntime, BinDir: bin, CNIBinDir: filepath.Join(bin, "cni"), Root: filepath.Join(t.TempDir(), "containerd"), RunDir: run,
		CNIConfDir: filepath.Join(run, "net.d"), SandboxImage: imagestore.PauseName("v1"),
		Bridge: fmt.Sprintf("bagent%d", network), PodCIDR: pods, Gateway: pods.Addr().Next(), ClusterMasquerade: true, UnsafeNoSync: true,
	}}
	guardNode(t, a.cgroup(), a.runtime.Bridge, dir)
	var err error
	a.runtime.Machine, err = containerd.Detect(a.runtime.Root)
	require.NoError(t, err)
	if a.runtime.Machine.Firewall != "iptables" {
		a.runtime.ClusterMasquerade = false
	}
	require.NoError(t, a.runtime.Write())
	a.log, err = os.Create(filepath.Join(t.TempDir(), "agent.log"))
	require.NoError(t, err)
	t.Cleanup(a.remove)
	argv, env := a.runtime.Command()
	a.daemon = exec.Command(argv[0], argv[1:]...)
	a.daemon.Env, a.daemon.Stdout, a.daemon.Stderr = append(os.Environ(), env...), a.log, a.log
	require.NoError(t, a.daemon.Start())
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.NoError(t, a.runtime.WaitReady(ctx, clock.RealClock{}))
	a.importImages(ctx)
	return a
}

// runOrphanCleanup kills orphaned shims each period while the test runs, as `berth up` does.
func (a *testNode) runOrphanCleanup(period time.Duration) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		a.runtime.RunOrphanCleanup(ctx, clock.RealClock{}, period, slog.New(slog.NewTextHandler(a.log, nil)))
	})
	a.t.Cleanup(func() { cancel(); running.Wait() })
}

// importImages imports the images of the tests' Pods.
func (a *testNode) importImages(ctx context.Context) {
	a.t.Helper()
	store, err := imagestore.Open(ctx, a.runtime.Socket())
	require.NoError(a.t, err)
	defer store.Close()
	pause, err := os.ReadFile(filepath.Join(a.runtime.BinDir, "images", "pause"))
	require.NoError(a.t, err)
	busybox, err := os.ReadFile("/bin/busybox")
	require.NoError(a.t, err, "apt-get install busybox-static (make deps does)")
	for _, spec := range []imagestore.BuildSpec{
		imagestore.PauseSpec(pause, "v1"), {Name: shellImage, Binary: busybox, Path: "/bin/busybox"},
	} {
		image, err := imagestore.Build(spec)
		require.NoError(a.t, err)
		require.NoError(a.t, store.Ensure(ctx, image))
	}
}

// noEviction are the flags of a node on which no Pod is evicted or rejected however little the machine has left: its disk is
// also everybody else's.
const noEviction = "--eviction-hard=memory.available<0%,nodefs.available<0%,nodefs.inodesFree<0%,imagefs.available<0%,imagefs.inodesFree<0%"

// makeBridge makes the bridge of the node's Pods, so that a kubelet of its own process can have its address: that is the Node's alone, so
// that the cluster signs a serving certificate for it.
func (a *testNode) makeBridge() {
	a.t.Helper()
	bridge := a.runtime.Bridge
	for _, args := range [][]string{
		{"link", "add", bridge, "type", "bridge"},
		{"address", "add", netip.PrefixFrom(a.runtime.Gateway, a.runtime.PodCIDR.Bits()).String(), "dev", bridge},
		{"link", "set", bridge, "up"},
	} {
		out, err := exec.CommandContext(a.t.Context(), "ip", args...).CombinedOutput()
		require.NoError(a.t, err, string(out))
	}
}

// address is that of the bridge.
func (a *testNode) address() string { return a.runtime.Gateway.String() }

func (a *testNode) root() string { return filepath.Join(a.dir, "kubelet") }
func (a *testNode) logs() string { return filepath.Join(a.dir, "logs") }

// links has the links to the logs, in place of the machine's own directory of them.
func (a *testNode) links() string { return filepath.Join(a.dir, "links") }

// cgroup is the name of the cgroup of the node's Pods.
func (a *testNode) cgroup() string { return filepath.Base(a.runtime.RunDir) }

// options returns the kubelet's configuration.
func (a *testNode) options() agent.Config {
	return agent.Config{
		Node:    agent.NodeConfig{Name: a.name, IPs: []net.IP{a.runtime.Gateway.AsSlice()}, Version: "v1.36.3"},
		RootDir: a.root(), Logs: agent.LogsConfig{PodsDir: a.logs()}, Cgroups: agent.CgroupConfig{Root: "/" + a.cgroup()},
		Runtime:  agent.RuntimeConfig{Endpoint: "unix://" + a.runtime.Socket()},
		Eviction: eviction.Config{Hard: map[string]string{}}, // as noEviction
	}
}

// start runs the kubelet, with the API server of config, until stop.
func (a *testNode) start(config *rest.Config, change func(*agent.Config)) {
	a.t.Helper()
	client, err := kubernetes.NewForConfig(config)
	require.NoError(a.t, err)
	leases, err := kubernetes.NewForConfig(config)
	require.NoError(a.t, err)
	options := a.options()
	change(&options)
	a.kubelet, err = agent.New(agent.Deps{
		Client: client, LeaseClient: leases, Logger: slog.New(slog.NewTextHandler(a.log, nil)),
	}, options)
	require.NoError(a.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := a.kubelet.Start(ctx); err != nil {
			a.t.Errorf("the kubelet of %s ended: %v", a.name, err)
		}
	})
	a.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		require.NoError(a.t, a.kubelet.Close())
	})
}

// admin returns the client configuration of the cluster's administrator.
func (c *cluster) admin() *rest.Config {
	c.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(c.dataDir, "admin.kubeconfig"))
	require.NoError(c.t, err)
	config.QPS = -1
	return config
}

func (a *testNode) audit() nodeAudit {
	return nodeAudit{
		root: a.root(), logs: a.logs(), runDir: a.runtime.RunDir, endpoint: a.runtime.Socket(), bridge: a.runtime.Bridge,
		cgroup: a.cgroup(),
	}
}

// remove stops the node and removes everything of it.
func (a *testNode) remove() {
	a.stop()
	if a.t.Failed() {
		if data, err := os.ReadFile(a.log.Name()); err == nil {
			a.t.Logf("end of the log of %s:\n%s", a.name, data[max(0, len(data)-logTailBytes):])
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	last, err := agent.New(agent.Deps{}, a.options())
	require.NoError(a.t, err)
	if err := last.StopPods(ctx); err != nil {
		a.t.Logf("stop the Pods of %s: %v", a.name, err)
	}
	require.NoError(a.t, last.Close())
	_ = a.daemon.Process.Signal(syscall.SIGTERM)
	_ = a.daemon.Wait()
	// A shim whose bundle containerd was removing may still run: `berth up` stops such shims when it stops.
	if _, err := a.runtime.KillOrphanShims(ctx); err != nil {
		a.t.Logf("end the shims of %s: %v", a.name, err)
	}
	_ = exec.Command("ip", "link", "delete", a.runtime.Bridge).Run() // it may not exist
	for _, file := range append(glob(a.runtime.NetworkCache()), a.runtime.RunDir) {
		require.NoError(a.t, os.RemoveAll(file))
	}
	_ = a.log.Close()
}

// nodeReady waits until the API server says that the node is ready.
func (a *testNode) nodeReady(client kubernetes.Interface) {
	a.t.Helper()
	require.NoError(a.t, retryUntil(a.t.Context(), func() error {
		node, err := client.CoreV1().Nodes().Get(a.t.Context(), a.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions of node %s: %v", a.name, node.Status.Conditions)
	}, nil))
}
