//go:build vm

package vm

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// berthShim is the program of Berth's runtime.
const berthShim = "containerd-shim-berth-v1"

// containerStatus is the part of a ContainerStatus that the test looks at; this module has no types of Kubernetes.
type containerStatus struct {
	ContainerID  string
	Ready        bool
	RestartCount int
	State        struct{ Running *struct{} }
	LastState    struct {
		Terminated *struct {
			Reason   string
			ExitCode int
		}
	}
}

// TestBerthRuntimeUnderSystemd runs Pods with Berth's shim as the only runtime, with the systemd cgroup driver on cgroup v2: limits, OOM
// kills, commands in containers, and what outlives the kubelet, containerd and the shim.
func TestBerthRuntimeUnderSystemd(t *testing.T) {
	m := startStandaloneKubeletOn(t, berthShim, "runtime", "")
	limited := waitContainer(t, m, "limited", func(s containerStatus) bool { return s.Ready })
	scope := output(t, m, "ls -d /sys/fs/cgroup/kubepods.slice/kubepods-pod*.slice/"+scopeOf(limited))
	require.Equal(t, "67108864 20000 100000", output(t, m, "cd "+scope+" && echo $(cat memory.max cpu.max)"))
	require.Equal(t, "active", output(t, m, "systemctl is-active "+scopeOf(limited)))

	hungry := waitContainer(t, m, "hungry", func(s containerStatus) bool { return s.RestartCount == 1 && s.State.Running != nil })
	ended := hungry.LastState.Terminated
	require.NotNil(t, ended)
	require.Equal(t, "OOMKilled", ended.Reason)
	require.Equal(t, 137, ended.ExitCode)
	require.Equal(t, "2", output(t, m, "pgrep -fc '^/usr/local/bin/"+berthShim+" '"), "one shim a Pod")
	require.Empty(t, output(t, m, "pgrep -f '^/usr/local/bin/containerd-shim-runc' || true"))

	require.Equal(t, "in the container", runInContainer(t, m, "limited", "/busybox echo in the container"))
	require.Contains(t, runInContainer(t, m, "limited", "/busybox cat /proc/self/cgroup"), "0::/", "an exec is in the container's cgroup")

	before := output(t, m, "cat "+scope+"/cgroup.procs")
	for _, unit := range []string{"kubelet", "containerd"} {
		output(t, m, "systemctl restart "+unit)
		waitFor(t, m, 180, "busybox wget -q -O - http://127.0.0.1:10248/healthz")
		require.Equal(t, "still runs", runInContainer(t, m, "limited", "/busybox echo still runs"), unit)
		// The process of the command may still be there for a moment; that of the container is the same.
		waitFor(t, m, 60, `[ "$(cat `+scope+`/cgroup.procs)" = `+before+` ]`)
	}

	output(t, m, "kill -9 $(ps -o ppid= -p "+before+")")
	again := waitContainer(t, m, "limited", func(s containerStatus) bool { return s.Ready && s.ContainerID != limited.ContainerID })
	waitFor(t, m, 180, "[ ! -e "+scope+" ]")
	require.Equal(t, 1, again.RestartCount)
	require.Equal(t, "runs again", runInContainer(t, m, "limited", "/busybox echo runs again"))
}

// TestBerthRuntimeCheckpoints has CRIU save the state of a container that runs, on request of the kubelet's API; the container goes on.
func TestBerthRuntimeCheckpoints(t *testing.T) {
	criu, err := exec.LookPath("criu")
	if err != nil {
		t.Skip("the machine gets the host's criu, and there is none: apt-get install criu")
	}
	m := startStandaloneKubeletOn(t, berthShim, "runtime", "")
	installFromHost(t, m, criu)
	limited := waitContainer(t, m, "limited", func(s containerStatus) bool { return s.Ready })
	script := kubeletRequest("POST", "/checkpoint/default/limited-"+output(t, m, "hostname")+"/c")
	var made struct{ Items []string }
	require.NoError(t, json.Unmarshal([]byte(output(t, m, script)), &made))
	require.Len(t, made.Items, 1)
	files := output(t, m, "tar -tf "+quote(made.Items[0]))
	for _, name := range []string{"config.dump", "spec.dump", "checkpoint/inventory.img", "checkpoint/pages-1.img", "dump.log"} {
		require.Contains(t, files, name)
	}
	require.Equal(t, "goes on", runInContainer(t, m, "limited", "/busybox echo goes on"))
	again := waitContainer(t, m, "limited", func(s containerStatus) bool { return s.Ready })
	require.Equal(t, limited, again, "a checkpoint does not end the container")
	require.Empty(t, output(t, m, "find /run/containerd/io.containerd.runtime.v2.task -name 'criu-*'"), "nothing of it is left in the bundle")
}

// installFromHost installs a program of the host with its libraries.
func installFromHost(t *testing.T, m *Machine, program string) {
	t.Helper()
	for line := range strings.Lines(runHost(t, "ldd", program)) {
		fields := strings.Fields(line) // name => path (address)
		if len(fields) == 4 && !strings.HasPrefix(fields[0], "libc.") {
			require.NoError(t, m.CopyTo(t.Context(), resolve(t, fields[2]), "/usr/local/lib"))
			output(t, m, "cd /usr/local/lib && [ "+filepath.Base(resolve(t, fields[2]))+" = "+fields[0]+" ] || mv "+
				filepath.Base(resolve(t, fields[2]))+" "+fields[0])
		}
	}
	require.NoError(t, m.CopyTo(t.Context(), program, "/usr/local/sbin"))
	output(t, m, "ldconfig && "+filepath.Base(program)+" --version")
}

func resolve(t *testing.T, path string) string {
	t.Helper()
	resolved, err := filepath.EvalSymlinks(path)
	require.NoError(t, err)
	return resolved
}

// scopeOf is systemd's name of a container's cgroup.
func scopeOf(status containerStatus) string {
	_, id, _ := strings.Cut(status.ContainerID, "://")
	return "cri-containerd-" + id + ".scope"
}

// waitContainer waits until the container of a static Pod has a status, which the kubelet's API has.
func waitContainer(t *testing.T, m *Machine, pod string, wanted func(containerStatus) bool) (status containerStatus) {
	t.Helper()
	for range 300 {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Status   struct{ ContainerStatuses []containerStatus }
			}
		}
		text := waitFor(t, m, 120, kubeletRequest("GET", "/pods"))
		require.NoError(t, json.Unmarshal([]byte(text), &list), text)
		for _, one := range list.Items {
			if !strings.HasPrefix(one.Metadata.Name, pod+"-") || len(one.Status.ContainerStatuses) != 1 {
				continue
			}
			if status = one.Status.ContainerStatuses[0]; wanted(status) {
				return status
			}
		}
		output(t, m, "sleep 1") // the API of a kubelet has no watch
	}
	t.Fatalf("the container of pod %s stays %+v", pod, status)
	return status
}

// runInContainer runs a command in a container of a static Pod and returns its output.
func runInContainer(t *testing.T, m *Machine, pod, command string) string {
	t.Helper()
	host := output(t, m, "hostname")
	query := "cmd=" + strings.ReplaceAll(strings.ReplaceAll(command, "/", "%2F"), " ", "+")
	return output(t, m, kubeletRequest("POST", "/run/default/"+pod+"-"+host+"/c?"+query))
}

// kubeletRequest is a script that sends a request to the kubelet's API and prints the body of the response, or fails.
func kubeletRequest(method, path string) string {
	request := method + " " + path + ` HTTP/1.0\r\nContent-Length: 0\r\n\r\n`
	return "printf " + quote(strings.ReplaceAll(request, "%", "%%")) +
		" | openssl s_client -quiet -connect 127.0.0.1:10250 2>/dev/null | tr -d '\\r' | awk 'NR==1 && $2 != 200 {exit} body; /^$/ {body=1} END {exit !body}'"
}
