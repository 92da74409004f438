//go:build integration

package integration

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/loopdev"
	"github.com/berth-dev/berth/internal/testnet"
	"github.com/berth-dev/berth/up/isolate"
	"github.com/berth-dev/berth/up/supervisor"
)

// newIsolatedCluster is newCluster with all components, in namespaces of its own.
func newIsolatedCluster(t *testing.T) *cluster {
	c := newClusterWithServices(t)
	c.args = append(c.args, "--isolated")
	return c
}

var nodePortsLine = regexp.MustCompile(`node ports +on (\S+)`)

// address is that of the cluster's network namespace, as the start printed it.
func (c *cluster) address(t *testing.T) string {
	t.Helper()
	match := nodePortsLine.FindStringSubmatch(c.out.String())
	require.NotNil(t, match, "it printed:\n%s", c.out)
	return match[1]
}

// TestIsolatedClusterBesideANormalOne runs two clusters with the same networks.
func TestIsolatedClusterBesideANormalOne(t *testing.T) {
	normal, c := newClusterWithServices(t), newIsolatedCluster(t)
	for _, flag := range []string{"--pod-cidr", "--service-cidr"} {
		c.args[slices.Index(c.args, flag)+1] = normal.args[slices.Index(normal.args, flag)+1]
	}
	c.args[slices.Index(c.args, "--pod-cidr")+1] += fmt.Sprintf(",fd00:%x::/56", c.network)
	c.args[slices.Index(c.args, "--service-cidr")+1] += fmt.Sprintf(",fd00:%x::/112", c.network+1)
	normal.up("--unsafe-no-fsync")
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(fmt.Sprintf(webManifest, shell("mkdir /w; /bin/busybox hostname > /w/index.html; exec /bin/busybox httpd -f -p 8080 -h /w", `"name": "web"`)))
	for _, pod := range []string{"web-0", "web-1"} {
		c.waitPod("statefulset.kubernetes.io/pod-name="+pod, "ready", isReady)
	}
	out, err := normal.run("kubectl", "get", "pods", "-A", "-o", "name")
	require.NoError(t, err)
	require.NotContains(t, out, "web-", "they are two clusters")

	t.Run("services and names", func(t *testing.T) {
		out := c.mustRun("kubectl", "exec", "web-0", "--", "/bin/busybox", "wget", "-q", "-O", "-", "http://web.default.svc.cluster.local")
		require.Contains(t, out, "web-")
	})
	t.Run("node ports", func(t *testing.T) {
		port := c.mustRun("kubectl", "get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}")
		c.reachesAll(t, net.JoinHostPort(c.address(t), port), []string{"web-0", "web-1"})
	})
	t.Run("port-forward", func(t *testing.T) { checkPortForward(t, c) })
	t.Run("other networks", func(t *testing.T) { checkOtherNetwork(t, c) })
	t.Run("explained from the machine", func(t *testing.T) {
		require.Contains(t, c.waitExplained(t, "Ready", "svc/web").Verdict, "leads to 2 of 2 Pods")
		name := c.waitExplained(t, "Resolved", "dns", "web", "--from", "pod/web-0")
		require.Contains(t, name.Verdict, "by "+normal.gateway()+" (the cluster's DNS)")
		require.Empty(t, name.Unseen)
	})
	t.Run("nothing on the machine", func(t *testing.T) {
		out, _ := c.run("doctor") // the leftovers of others are errors, too
		require.Contains(t, out, "This machine")
		require.NotContains(t, out, c.id(), "it is not dead")
		mounts, err := os.ReadFile("/proc/self/mounts")
		require.NoError(t, err)
		require.NotContains(t, string(mounts), c.dataDir)
		require.NotContains(t, string(mounts), c.runDir())
		require.Contains(t, c.mustRun("explain", "pod", "web-0"), "web-0")
	})
	c.stop()
	require.Empty(t, c.leftovers())
	require.NotContains(t, ruleset(t), "berth"+c.id())
	normal.stop()
}

// checkPortForward reaches a Service by `kubectl port-forward`.
func checkPortForward(t *testing.T, c *cluster) {
	cmd := exec.CommandContext(t.Context(), c.berth, "--data-dir", c.dataDir, "kubectl", "port-forward", "service/web", ":80")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill() // it runs until it is killed
		_ = cmd.Wait()
	}()
	buffer := make([]byte, 1000)
	n, err := stdout.Read(buffer)
	require.NoError(t, err)
	match := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`).FindStringSubmatch(string(buffer[:n]))
	require.NotNil(t, match, "%s", buffer[:n])
	require.Contains(t, get(t, "http://"+match[1]+"/"), "web-")
}

// checkOtherNetwork reaches a machine on another network, which has no route to the cluster, from a Pod: a web server in a
// network namespace beside the machine's.
func checkOtherNetwork(t *testing.T, c *cluster) {
	name := "berth-test-" + c.id()
	network := testnet.Prefix(c.network + 2).Addr().Next()
	peer := network.Next()
	ip := func(args string) {
		t.Helper()
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, "ip %s: %s", args, out)
	}
	ip("netns add " + name)
	t.Cleanup(func() { ip("netns delete " + name) })
	ip("link add bt" + c.id() + " type veth peer name eth0 netns " + name)
	ip("address add " + network.String() + "/16 dev bt" + c.id())
	ip("link set bt" + c.id() + " up")
	ip("-n " + name + " address add " + peer.String() + "/16 dev eth0")
	ip("-n " + name + " link set eth0 up")
	peer6 := fmt.Sprintf("fd00:%x::2", c.network+2)
	ip(fmt.Sprintf("address add fd00:%x::1/64 dev bt%s nodad", c.network+2, c.id()))
	ip("-n " + name + " address add " + peer6 + "/64 dev eth0 nodad")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "index.html"), []byte("the other network"), 0o644))
	for _, address := range []string{peer.String(), peer6} {
		at := net.JoinHostPort(address, "80")
		server := exec.Command("ip", "netns", "exec", name, "/bin/busybox", "httpd", "-f", "-p", at, "-h", dir)
		require.NoError(t, server.Start())
		require.Equal(t, "the other network", c.wget(t, "web-0", "http://"+at))
		_ = server.Process.Kill()
		_ = server.Wait()
	}
}

func ruleset(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "tables").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}

const diskManifest = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {storageClassName: berth-loop, accessModes: [ReadWriteOnce], resources: {requests: {storage: 32Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: writer, labels: {name: writer}}
spec:
  terminationGracePeriodSeconds: 1
  volumes: [{name: disk, persistentVolumeClaim: {claimName: disk}}]
  containers: [%s]
`

// TestKilledIsolatedClusterLeavesNothing kills the processes that isolate a cluster, which has a Pod with a disk.
func TestKilledIsolatedClusterLeavesNothing(t *testing.T) {
	c := newIsolatedCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(fmt.Sprintf(diskManifest, shell("date >> /data/starts; sync; exec /bin/busybox sleep 1000000",
		`"name": "writer", "volumeMounts": [{"name": "disk", "mountPath": "/data"}]`)))
	c.waitPod("name=writer", "ready", isReady)
	c.waitStarts(1)
	isLoop := func(backing string) bool { return strings.HasPrefix(backing, c.dataDir) }
	disks, err := loopdev.New().List(isLoop)
	require.NoError(t, err)
	require.Len(t, disks, 1, "the Pod's disk")

	starts := 1
	for _, victim := range []string{"outer", "inner", "berth"} {
		process := c.cmd.Process.Pid
		if victim != "outer" {
			process = child(t, process, isolate.Program)
		}
		if victim == "berth" {
			process = child(t, process, supervisor.ProgramName[:15]) // the kernel's name of a process
		}
		require.NoError(t, syscall.Kill(process, syscall.SIGKILL))
		require.Error(t, <-c.ended, victim)
		c.cmd = nil
		var left []string
		require.NoError(t, c.poll(func(context.Context) bool {
			left = append(c.leftovers(), c.leftoversOfIsolation(t)...)
			return len(left) == 0
		}), "after the end of %s there is %v", victim, left)
		c.launch("--unsafe-no-fsync") // at once: it waits for the removal
		c.out.waitFor(t, "is ready after", c.ended)
		starts++
		c.waitStarts(starts)
	}
	for _, isolated := range []bool{true, false} { // the next run removes what is left, whether it is isolated or not
		c.killIsolation(t)
		if !isolated {
			c.args = slices.DeleteFunc(c.args, func(arg string) bool { return arg == "--isolated" })
			c.args = append(c.args, "--isolated=false", "--without", "kube-proxy,dns")
		}
		c.up("--unsafe-no-fsync")
		require.Contains(t, c.out.String(), "removed what an earlier run, which was killed, has left")
		starts++
		c.waitStarts(starts)
		disks, err := loopdev.New().List(isLoop)
		require.NoError(t, err)
		require.Len(t, disks, 1, "the Pod's disk")
	}
	c.stop()
	require.Empty(t, append(c.leftovers(), c.leftoversOfIsolation(t)...))
}

// leftoversOfIsolation lists what leftovers does not: loop devices, and the rules for the link to the machine.
func (c *cluster) leftoversOfIsolation(t *testing.T) []string {
	t.Helper()
	var left []string
	disks, err := loopdev.New().List(func(backing string) bool { return strings.HasPrefix(backing, c.dataDir) })
	if err != nil || len(disks) > 0 {
		left = append(left, fmt.Sprint("loop devices: ", disks, err))
	}
	if strings.Contains(ruleset(t), "berth"+c.id()) {
		left = append(left, "masquerade rule")
	}
	return left
}

// killIsolation kills both processes that isolate the cluster at once: neither can clean up. The kernel ends everything but
// cgroups, loop devices and the run directory, which berth doctor finds.
func (c *cluster) killIsolation(t *testing.T) {
	t.Helper()
	outer := c.cmd.Process.Pid
	inner := child(t, outer, isolate.Program)
	for _, signal := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
		for _, process := range []int{outer, inner} {
			require.NoError(t, syscall.Kill(process, signal))
		}
	}
	require.Error(t, <-c.ended)
	c.cmd = nil
	var left []string
	require.NoError(t, c.poll(func(context.Context) bool {
		left = slices.DeleteFunc(append(c.leftovers(), c.leftoversOfIsolation(t)...), func(one string) bool {
			return strings.HasPrefix(one, "loop devices") || strings.HasPrefix(one, "/sys/fs/cgroup/") || one == c.runDir()
		})
		return len(left) == 0
	}), "the kernel leaves %v", left)
	out, _ := c.run("doctor") // what it finds is an error
	require.Contains(t, out, c.id())
}

// waitStarts waits until the disk has one line for each start of the Pod: its data are kept.
func (c *cluster) waitStarts(count int) {
	c.t.Helper()
	var out string
	require.NoError(c.t, c.poll(func(context.Context) bool {
		var err error
		out, err = c.run("kubectl", "exec", "writer", "--", "/bin/busybox", "cat", "/data/starts")
		return err == nil && strings.Count(out, "\n") == count
	}), "after %d starts: %s", count, out)
}

// child returns the child process of a process that runs the program: the inner process also has the orphans of its PID
// namespace as children.
func child(t *testing.T, pid int, program string) int {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, task := range tasks {
		children, _ := os.ReadFile(task) // the thread may have ended
		for _, field := range strings.Fields(string(children)) {
			name, _ := os.ReadFile("/proc/" + field + "/comm") // the process may have ended
			if strings.TrimSpace(string(name)) == program {
				found, err := strconv.Atoi(field)
				require.NoError(t, err)
				return found
			}
		}
	}
	t.Fatalf("process %d has no child %s", pid, program)
	return 0
}

// TestConflictsOnTheMachine starts clusters whose networks or ports others use.
func TestConflictsOnTheMachine(t *testing.T) {
	refuse := func(t *testing.T, c *cluster, message string, flags ...string) {
		t.Helper()
		out := c.refused(flags...)
		require.Contains(t, out, message)
		require.Len(t, strings.Split(strings.TrimSpace(out), "\n"), 1, "one line, not:\n%s", out)
		require.Empty(t, c.leftovers())
		require.NoDirExists(t, c.dataDir, "nothing was changed")
	}
	t.Run("a route of the machine", func(t *testing.T) {
		c := newCluster(t)
		link, network := "bd"+c.id(), testnet.Prefix(c.network+2)
		for _, args := range []string{"link add " + link + " type bridge", "link set " + link + " up",
			"address add 198.51.100.1/32 dev " + link, "route add " + network.String() + " dev " + link} {
			out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
			require.NoError(t, err, "ip %s: %s", args, out)
		}
		t.Cleanup(func() { require.NoError(t, exec.Command("ip", "link", "delete", link).Run()) })
		refuse(t, c, "--service-cidr "+network.String()+" overlaps "+network.String()+" of interface "+link, "--service-cidr", network.String())
		refuse(t, c, "--pod-cidr "+network.String()+" overlaps", "--pod-cidr", network.String())
	})
	t.Run("no conflict with another network namespace", func(t *testing.T) {
		other, c := newCluster(t), newCluster(t)
		name := "berth-test-" + other.id()
		out, err := exec.Command("ip", "netns", "add", name).CombinedOutput()
		require.NoError(t, err, "%s", out)
		t.Cleanup(func() { require.NoError(t, exec.Command("ip", "netns", "delete", name).Run()) })
		script := fmt.Sprintf("#!/bin/sh\nnsenter --net=/run/netns/%[1]s ip link set lo up\nexec nsenter --net=/run/netns/%[1]s %[2]s \"$@\"\n", name, other.berth)
		other.berth = filepath.Join(t.TempDir(), "berth")
		require.NoError(t, os.WriteFile(other.berth, []byte(script), 0o755))
		for _, flag := range []string{"--pod-cidr", "--service-cidr"} {
			c.args[slices.Index(c.args, flag)+1] = other.args[slices.Index(other.args, flag)+1]
		}
		other.up("--unsafe-no-fsync")
		c.up("--unsafe-no-fsync")
		c.stop()
		other.stop()
	})
	t.Run("port 53 on all addresses", func(t *testing.T) {
		packets, err := net.ListenPacket("udp4", "0.0.0.0:53")
		if err != nil {
			t.Skip("another program has it: ", err)
		}
		defer packets.Close()
		c := newClusterWithServices(t)
		refuse(t, c, "dns: udp "+c.gateway()+":53 is in use by ")
	})
	t.Run("nft missing or too old", func(t *testing.T) {
		c := newClusterWithServices(t)
		dir := t.TempDir()
		iptables, err := exec.LookPath("iptables")
		require.NoError(t, err)
		require.NoError(t, os.Symlink(iptables, filepath.Join(dir, "iptables")))
		t.Setenv("PATH", dir)
		refuse(t, c, "nft not found, which Services need: apt-get install nftables, or start with --without kube-proxy")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "nft"), []byte("#!/bin/sh\necho 'nftables v0.9.8 (E.D.S.)'\n"), 0o755))
		refuse(t, c, "has version 0.9.8, which is too old for Services, which need 1.0.1")
	})
	t.Run("the port of the API server, isolated", func(t *testing.T) {
		c := newIsolatedCluster(t)
		server := http.Server{Handler: http.NotFoundHandler()}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", c.port))
		require.NoError(t, err)
		go func() { _ = server.Serve(listener) }()
		defer server.Close()
		refuse(t, c, fmt.Sprintf("--api-port: tcp 127.0.0.1:%d is in use by ", c.port))
	})
	t.Run("the table of another kube-proxy", func(t *testing.T) {
		c := newClusterWithServices(t)
		if strings.Contains(ruleset(t), "kube-proxy") {
			t.Skip("there is one")
		}
		require.NoError(t, exec.Command("nft", "add", "table", "ip", "kube-proxy").Run())
		t.Cleanup(func() { require.NoError(t, exec.Command("nft", "delete", "table", "ip", "kube-proxy").Run()) })
		refuse(t, c, "a kube-proxy of another cluster runs on this machine")
		refuse(t, c, "--isolated")
	})
}
