//go:build integration

package containerd_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/imagestore"
	"github.com/berth-dev/berth/internal/routes"
	"github.com/berth-dev/berth/internal/testnet"
	"github.com/berth-dev/berth/internal/testproc"
	"github.com/berth-dev/berth/up/containerd"
)

const imageVersion = "test"

// waitTimeout bounds every wait of these tests. It is generous, because a loaded machine is slow and a test that fails for
// want of time proves nothing.
const waitTimeout = 3 * time.Minute

// binaries is where `make build` put the programs.
func binaries(t testing.TB) string {
	dir, err := filepath.Abs("../../bin")
	require.NoError(t, err)
	if os.Geteuid() != 0 {
		t.Skip("containers need root")
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "containerd-shim-berth-v1", "runc", "cni/bridge", "images/pause", "images/demo"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Skipf("not built, run make build: %v", err)
		}
	}
	return dir
}

// fixture is one containerd under test, and what was on the machine before it.
type fixture struct {
	containerd.Config
	runtimeapi.RuntimeServiceClient
	bin    string
	log    *os.File
	daemon *exec.Cmd
	conn   *grpc.ClientConn
	cgroup string
	// handler is the runtime of the Pods that run makes; empty for the default.
	handler string
}

// newFixture writes the configuration of a containerd whose Pods have addresses of its own network.
func newFixture(t testing.TB) *fixture { return newFixtureOn(t, testnet.Claim(t)) }

func newFixtureOn(t testing.TB, network int) *fixture {
	bin := binaries(t)
	// A socket's path must be short, so it cannot be below t.TempDir.
	run, err := os.MkdirTemp("/run", "berth-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(run)) })
	data := t.TempDir()
	require.NoError(t, os.Chmod(data, 0o700)) // As a cluster's data directory is.
	root := filepath.Join(data, "containerd")
	machine, err := containerd.Detect(root)
	require.NoError(t, err)
	n := &fixture{bin: bin, cgroup: "/" + filepath.Base(run), Config: containerd.Config{
		Runtime: cmp.Or(os.Getenv("BERTH_TEST_RUNTIME"), containerd.Runtimes()[0]),
		BinDir:  bin, CNIBinDir: filepath.Join(bin, "cni"), Root: root, RunDir: run,
		CNIConfDir: filepath.Join(data, "net.d"), SandboxImage: imagestore.PauseName(imageVersion),
		Bridge:  fmt.Sprintf("brtest%d", network),
		PodCIDR: testnet.Prefix(network), Gateway: testnet.Prefix(network).Addr().Next(), Machine: machine, UnsafeNoSync: true,
	}}
	testproc.CleanupOnCrash(t, n.resources()) // like the next, before anything that it removes can exist
	t.Cleanup(func() { n.cleanup(t) })
	require.NoError(t, n.Write())
	n.log, err = os.Create(filepath.Join(data, "containerd.log"))
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(n.log.Name())
			t.Logf("containerd's log:\n%s", log)
		}
		_ = n.log.Close()
	})
	return n
}

// firstPod is where the page of the first Pod is that gets an address.
func (n *fixture) firstPod() string {
	return "http://" + netip.AddrPortFrom(n.Gateway.Next(), 8080).String()
}

// start runs containerd until it is ready and returns how long that took.
func (n *fixture) start(t testing.TB) time.Duration {
	began := time.Now()
	n.launch(t)
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	require.NoError(t, n.WaitReady(ctx, clock.RealClock{}))
	took := time.Since(began)
	var err error
	n.conn, err = grpc.NewClient("unix:"+n.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	n.RuntimeServiceClient = runtimeapi.NewRuntimeServiceClient(n.conn)
	return took
}

// launch starts containerd and does not wait for it.
func (n *fixture) launch(t testing.TB) {
	argv, env := n.Command()
	n.daemon = exec.Command(argv[0], argv[1:]...)
	n.daemon.Env = append(os.Environ(), env...)
	n.daemon.Stdout, n.daemon.Stderr = n.log, n.log
	require.NoError(t, n.daemon.Start())
	daemon := n.daemon
	t.Cleanup(func() { // which does nothing after an orderly stop
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	})
}

func (n *fixture) stop(t testing.TB) {
	require.NoError(t, n.conn.Close())
	require.NoError(t, n.daemon.Process.Signal(syscall.SIGTERM))
	_ = n.daemon.Wait() // It ends by the signal that it was sent.
}

// importImages imports pause and demo, twice: the second time there is nothing to do.
func (n *fixture) importImages(t testing.TB) {
	store, err := imagestore.Open(t.Context(), n.Socket())
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	began := time.Now()
	built := builtImages(t, n.bin)
	assembled := time.Since(began)
	require.NoError(t, store.Ensure(t.Context(), built...))
	imported := time.Since(began)
	require.NoError(t, store.Ensure(t.Context(), built...))
	t.Logf("images: assembled in %s, imported after %s, found again in %s", assembled, imported, time.Since(began)-imported)
	list, err := store.List(t.Context())
	require.NoError(t, err)
	names := map[string]bool{}
	for _, image := range list {
		names[image.Name] = true
		require.Len(t, image.Platforms, 1)
		require.Positive(t, image.Size)
	}
	require.True(t, names["berth.local/demo:test"] && names["berth.local/pause:test"], "%v", names)
}

func builtImages(t testing.TB, bin string) []imagestore.Built {
	var built []imagestore.Built
	for name, spec := range map[string]func([]byte, string) imagestore.BuildSpec{
		"pause": imagestore.PauseSpec, "demo": imagestore.DemoSpec,
	} {
		binary, err := os.ReadFile(filepath.Join(bin, "images", name))
		require.NoError(t, err)
		image, err := imagestore.Build(spec(binary, imageVersion))
		require.NoError(t, err)
		built = append(built, image)
	}
	return built
}

// sandbox is the configuration of a Pod's sandbox.
func (n *fixture) sandbox(name, logs string, hostNetwork bool) *runtimeapi.PodSandboxConfig {
	network := runtimeapi.NamespaceMode_POD
	if hostNetwork {
		network = runtimeapi.NamespaceMode_NODE
	}
	return &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "test", Uid: name},
		LogDirectory: logs,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: n.cgroup + "/kubepods/pod" + name,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Network: network, Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			},
		},
	}
}

// pod is a running Pod with the demo in it, and how long its three calls took.
type pod struct {
	sandbox, container string
	steps              [3]time.Duration
}

func (n *fixture) run(t testing.TB, config *runtimeapi.PodSandboxConfig, data string) pod {
	var p pod
	began := time.Now()
	sandbox, err := n.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: n.handler})
	require.NoError(t, err)
	p.sandbox, p.steps[0] = sandbox.PodSandboxId, time.Since(began)
	t.Cleanup(func() {
		if t.Failed() { // Else the test has ended it.
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			_, _ = n.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
			_, _ = n.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
		}
	})
	n.runContainer(t, &p, config, data, "demo")
	return p
}

// runContainer runs a container in the Pod's sandbox.
func (n *fixture) runContainer(t testing.TB, p *pod, config *runtimeapi.PodSandboxConfig, data, name string) {
	began := time.Now()
	port := "8080"
	if config.Linux.SecurityContext.NamespaceOptions.Network == runtimeapi.NamespaceMode_NODE {
		port = "0"
	}
	// With a user namespace, a volume's files keep their owners only if its mount says so.
	mapping := config.Linux.SecurityContext.NamespaceOptions.UsernsOptions
	container, err := n.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: p.sandbox, SandboxConfig: config,
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: name},
			Image:    &runtimeapi.ImageSpec{Image: imagestore.DemoName(imageVersion)},
			Envs:     []*runtimeapi.KeyValue{{Key: "PORT", Value: []byte(port)}},
			LogPath:  name + ".log",
			Mounts:   []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: data, UidMappings: mapping.GetUids(), GidMappings: mapping.GetGids()}},
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources: &runtimeapi.LinuxContainerResources{OomScoreAdj: 1000},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: config.Linux.SecurityContext.NamespaceOptions,
					Seccomp:          config.Linux.SecurityContext.Seccomp,
				},
			},
		},
	})
	require.NoError(t, err)
	p.container, p.steps[1] = container.ContainerId, time.Since(began)
	began = time.Now()
	_, err = n.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: p.container})
	require.NoError(t, err)
	p.steps[2] = time.Since(began)
}

// end stops and removes the Pod and returns how long that took.
func (n *fixture) end(t testing.TB, p pod) time.Duration {
	began := time.Now()
	_, err := n.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: p.container, Timeout: 5})
	require.NoError(t, err)
	_, err = n.StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: p.sandbox})
	require.NoError(t, err)
	_, err = n.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.sandbox})
	require.NoError(t, err)
	return time.Since(began)
}

// get asks until there is an answer: a container that has started is not yet one that listens. It does not give up a
// question that was heard, which the demo would count.
func get(t testing.TB, url string) string {
	var body string
	require.Eventually(t, func() bool {
		client := &http.Client{Timeout: waitTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
		answer, err := client.Get(url)
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		data, err := io.ReadAll(answer.Body)
		body = string(data)
		return err == nil && answer.StatusCode == http.StatusOK
	}, waitTimeout, 5*time.Millisecond)
	return body
}

// volume is a directory that the demo's user may write to, below one that only root may pass.
func volume(t testing.TB) string {
	closed := t.TempDir()
	require.NoError(t, os.Chmod(closed, 0o700))
	dir := filepath.Join(closed, "volume")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.Chown(dir, 65532, 65532))
	return dir
}

// requireNothingLeft waits until nothing of this node is left but what outlives Pods by design. What was taken away may still be
// about to end, as a shim that has said goodbye to containerd, or a link whose namespace the kernel takes apart.
func (n *fixture) requireNothingLeft(t testing.TB) {
	t.Helper()
	var left []string
	for deadline := time.Now().Add(waitTimeout); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if left = n.leftovers(t); len(left) == 0 {
			return
		}
	}
	require.Empty(t, left)
}

// leftovers is what of this node is still on the machine: mounts, shims, interfaces, firewall rules and addresses given
// out.
func (n *fixture) leftovers(t testing.TB) []string {
	var left []string
	mounts, err := mountinfo.GetMounts(nil)
	require.NoError(t, err)
	for _, mount := range mounts {
		if strings.HasPrefix(mount.Mountpoint, n.RunDir) || strings.HasPrefix(mount.Mountpoint, n.Root) {
			left = append(left, "mount "+mount.Mountpoint)
		}
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range commands {
		if file == fmt.Sprintf("/proc/%d/cmdline", n.daemon.Process.Pid) {
			continue // containerd itself may still run
		}
		if data, err := os.ReadFile(file); err == nil && strings.Contains(string(data), n.RunDir) {
			stat, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "stat")) // it says in which state it is, and of which parent
			waits, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "wchan"))
			left = append(left, fmt.Sprintf("process %s, which waits in %q: %s", strings.ReplaceAll(string(data), "\x00", " "), waits, stat))
		}
	}
	links, err := routes.RetryInterrupted(netlink.LinkList)
	require.NoError(t, err)
	bridge, err := netlink.LinkByName(n.Bridge)
	require.NoError(t, err)
	for _, link := range links {
		if link.Attrs().MasterIndex == bridge.Attrs().Index {
			left = append(left, "interface "+link.Attrs().Name)
		}
	}
	for _, rule := range n.firewallRules(t) {
		left = append(left, "firewall "+rule)
	}
	for _, pattern := range []string{
		n.State() + "/*/netns/*", n.RunDir + "/addresses/" + n.Bridge + "/10.*", n.NetworkCache(), n.RunDir + "/s/*",
		n.RunDir + "/runc/k8s.io/*",
	} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		left = append(left, found...)
	}
	return left
}

// cgroups lists the directories of the node's Pods in all hierarchies.
func (n *fixture) cgroups(t testing.TB) []string {
	var found []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(path+"/", n.cgroup+"/") {
			found = append(found, path)
		}
		return nil
	})
	require.NoError(t, err)
	return found
}

// clean removes what outlives Pods by design: the bridge, and the cgroups that the kubelet would own.
func (n *fixture) clean(t testing.TB) {
	link, err := netlink.LinkByName(n.Bridge)
	if !errors.As(err, &netlink.LinkNotFoundError{}) {
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(link))
	}
	dirs := n.cgroups(t)
	slices.Reverse(dirs) // Children first.
	for _, dir := range dirs {
		require.NoError(t, os.Remove(dir))
	}
}

func median(values []time.Duration) time.Duration {
	slices.Sort(values)
	return values[len(values)/2].Round(100 * time.Microsecond)
}
