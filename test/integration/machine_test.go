//go:build integration

package integration

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/imagestore"
	"github.com/berth-dev/berth/up/containerd"
)

// machine is one more node of a cluster, on this machine: a network namespace, a containerd and a kubelet of its own,
// joined as the documentation describes. Its name is that of its Node.
type machine struct {
	t       testing.TB
	c       *cluster
	name    string
	dir     string // of its kubelet, images and logs
	run     string // sockets, short
	address string // its own; the host's end of the link has the one before
	runtime containerd.Config

	link    string // the host's end, and the network namespace's name
	running map[string]*exec.Cmd
}

// newMachine prepares the network of the machine number i of the cluster; nothing runs before start.
func newMachine(t testing.TB, c *cluster, i int) *machine {
	t.Helper()
	run := runDir(t, "berth-m")
	m := &machine{
		t: t, c: c, name: fmt.Sprintf("machine-%d", i), dir: filepath.Join(shortDir(t), fmt.Sprint("m", i)), run: run,
		address: fmt.Sprintf("10.%d.%d.2", c.network+2, i), link: fmt.Sprintf("bm%d-%d", c.network, i),
		running: make(map[string]*exec.Cmd),
	}
	bin := filepath.Dir(c.berth)
	pods := netip.MustParsePrefix(fmt.Sprintf("10.%d.%d.0/24", c.network+3, i))
	m.runtime = containerd.Config{
		BinDir: bin, CNIBinDir: filepath.Join(bin, "cni"), Root: filepath.Join(m.dir, "containerd"), RunDir: run,
		CNIConfDir: filepath.Join(m.dir, "cni"), SandboxImage: imagestore.PauseName("v1"), Bridge: m.link + "p",
		PodCIDR: pods, Gateway: pods.Addr().Next(), UnsafeNoSync: true,
		ClusterMasquerade: true, // not done by any component: the host has a route to these Pods
	}
	guardNode(t, filepath.Base(run), m.link, filepath.Dir(m.dir))
	var err error
	m.runtime.Machine, err = containerd.Detect(m.runtime.Root)
	require.NoError(t, err)
	require.NoError(t, m.runtime.Write())
	require.NoError(t, os.MkdirAll(filepath.Join(m.dir, "log"), 0o700))
	t.Cleanup(m.remove)
	host := fmt.Sprintf("10.%d.%d.1", c.network+2, i)
	for _, command := range []string{
		"netns add " + m.link,
		"link add " + m.link + " type veth peer name eth0 netns " + m.link,
		"addr add " + host + "/24 dev " + m.link,
		"link set " + m.link + " up",
		"-n " + m.link + " link set lo up",
		"-n " + m.link + " addr add " + m.address + "/24 dev eth0",
		"-n " + m.link + " link set eth0 up",
		"-n " + m.link + " route add default via " + host,
		"route add " + pods.String() + " via " + m.address,
	} {
		m.ip(command)
	}
	return m
}

// ip runs ip(8).
func (m *machine) ip(arguments string) {
	m.t.Helper()
	out, err := exec.Command("ip", strings.Fields(arguments)...).CombinedOutput()
	require.NoError(m.t, err, "ip %s: %s", arguments, out)
}

// cgroup is where the machine's Pods lie.
func (m *machine) cgroup() string { return "/" + filepath.Base(m.run) }

// start boots the machine and joins it, with a driver that registers in its directory.
func (m *machine) start(driver func(m *machine) []string) {
	m.t.Helper()
	m.boot()
	m.launch("driver", nil, driver(m)...)
	m.join("--node-ip", m.address)
}

// boot starts containerd on the machine.
func (m *machine) boot() {
	m.t.Helper()
	argv, env := m.runtime.Command()
	m.launch("containerd", env, argv...)
	ctx, cancel := context.WithTimeout(m.t.Context(), waitTimeout)
	defer cancel()
	require.NoError(m.t, m.runtime.WaitReady(ctx, clock.RealClock{}), "containerd of %s", m.name)
	m.importImages(ctx)
}

// join makes the machine a node of its cluster.
func (m *machine) join(flags ...string) {
	m.t.Helper()
	m.launch("node", nil, append([]string{m.c.berth, "node", noEviction, "--node-name", m.name,
		"--bootstrap-kubeconfig", m.c.remoteKubeconfig(filepath.Join(m.dir, "admin.kubeconfig")),
		"--kubeconfig", filepath.Join(m.dir, "node.kubeconfig"), "--rotate-server-certificates",
		"--container-runtime-endpoint", "unix://" + m.runtime.Socket(), "--root-dir", m.kubelet(),
		"--pod-logs-dir", filepath.Join(m.dir, "pods"), "--cgroup-root", m.cgroup(), "--socket", m.records()}, flags...)...)
}

func (m *machine) kubelet() string  { return filepath.Join(m.dir, "kubelet") }
func (m *machine) records() string  { return filepath.Join(m.run, "berth.sock") }
func (m *machine) registry() string { return filepath.Join(m.kubelet(), "plugins_registry") }

// importImages imports the images of the tests' Pods.
func (m *machine) importImages(ctx context.Context) {
	m.t.Helper()
	store, err := imagestore.Open(ctx, m.runtime.Socket())
	require.NoError(m.t, err)
	defer store.Close()
	pause, err := os.ReadFile(filepath.Join(m.runtime.BinDir, "images", "pause"))
	require.NoError(m.t, err)
	busybox, err := os.ReadFile("/bin/busybox")
	require.NoError(m.t, err)
	var built []imagestore.Built
	for _, spec := range []imagestore.BuildSpec{
		imagestore.PauseSpec(pause, "v1"), {Name: shellImage, Binary: busybox, Path: "/bin/busybox"},
	} {
		image, err := imagestore.Build(spec)
		require.NoError(m.t, err)
		built = append(built, image)
	}
	require.NoError(m.t, store.Ensure(ctx, built...))
}

// launch runs a program in the machine's network.
func (m *machine) launch(name string, env []string, argv ...string) {
	m.t.Helper()
	log, err := os.OpenFile(m.log(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(m.t, err)
	defer log.Close()
	cmd := exec.Command("nsenter", append([]string{"--net=/run/netns/" + m.link, "--"}, argv...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), log, log
	require.NoError(m.t, cmd.Start(), name)
	m.running[name] = cmd
}

func (m *machine) log(name string) string { return filepath.Join(m.dir, "log", name+".log") }

// processes are the machine's: those that name its directories, and those in its cgroups.
func (m *machine) processes() []int {
	var found []int
	dirs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(m.t, err)
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		command, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may end meanwhile
		groups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		if bytes.Contains(command, []byte(m.run)) || bytes.Contains(command, []byte(m.dir+"/")) ||
			bytes.Contains(groups, []byte(m.cgroup()+"/")) {
			found = append(found, pid)
		}
	}
	return found
}

// kill kills all processes of the machine at once, as the loss of its power does.
func (m *machine) kill() {
	m.t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, waitTimeout, true,
		func(context.Context) (bool, error) {
			pids := m.processes()
			for _, pid := range pids {
				_ = syscall.Kill(pid, syscall.SIGKILL) // one may have died with another
			}
			return len(pids) == 0, nil
		})
	require.NoError(m.t, err, "processes of %s survive SIGKILL", m.name)
	for name, cmd := range m.running {
		_ = cmd.Wait() // it was killed
		delete(m.running, name)
	}
}

// cutLink and restoreLink take the machine's link down and up.
func (m *machine) cutLink()     { m.ip("link set " + m.link + " down") }
func (m *machine) restoreLink() { m.ip("link set " + m.link + " up"); m.reroute() }

// reroute adds the route again that was lost with the link.
func (m *machine) reroute() {
	m.ip("route replace " + m.runtime.PodCIDR.String() + " via " + m.address)
}

// mountsBelow returns the mount points below the directory, the deepest first.
func mountsBelow(t testing.TB, dir string) []string {
	t.Helper()
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	require.NoError(t, err)
	var points []string
	for _, info := range infos {
		points = append(points, info.Mountpoint)
	}
	sort.Slice(points, func(i, j int) bool { return len(points[i]) > len(points[j]) })
	return points
}

// unmount unmounts everything of the machine, as the loss of its power does.
func (m *machine) unmount() {
	for _, dir := range []string{m.dir, m.run} {
		for _, point := range mountsBelow(m.t, dir) {
			require.NoError(m.t, unix.Unmount(point, unix.MNT_DETACH), point)
		}
	}
}

// remove removes everything of the machine.
func (m *machine) remove() {
	if m.t.Failed() {
		for name := range m.running {
			if data, err := os.ReadFile(m.log(name)); err == nil {
				m.t.Logf("end of %s of %s:\n%s", name, m.name, data[max(0, len(data)-4000):])
			}
		}
	}
	m.kill()
	m.unmount()
	_ = exec.Command("ip", "link", "delete", m.link).Run() // it may not exist
	_ = exec.Command("ip", "netns", "delete", m.link).Run()
	tops, _ := filepath.Glob("/sys/fs/cgroup/*" + m.cgroup())
	for _, top := range append(tops, "/sys/fs/cgroup"+m.cgroup()) {
		removeCgroup(top)
	}
	traces, _ := filepath.Glob(m.runtime.NetworkCache())
	for _, file := range append(traces, m.run) {
		require.NoError(m.t, os.RemoveAll(file))
	}
}

func removeCgroup(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			removeCgroup(filepath.Join(dir, entry.Name()))
		}
	}
	_ = os.Remove(dir)
}

// waitNode waits until the Node is as wanted.
func (c *cluster) waitNode(name, what string, satisfied func(*corev1.Node) bool) {
	c.t.Helper()
	client := c.client()
	var last any
	require.NoError(c.t, c.poll(func(ctx context.Context) bool {
		node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			last = err
			return false
		}
		last = node.Status.Conditions
		return satisfied(node)
	}), "wait for node %s to be %s; it is: %v", name, what, last)
}
