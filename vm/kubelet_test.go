//go:build vm

package vm

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// share is where the machine has the directory of guestShare.
const share = "/share"

// showPods prints for each container of the static Pods: its Pod, the process, its OOM score adjustment, its AppArmor profile
// and its cgroup, and fails unless all of them run, which runc that prepares one does not yet. Their cgroups are scopes that containerd names.
const showPods = `n=0; for scope in /sys/fs/cgroup/kubepods.slice/*/cri-containerd-*.scope /sys/fs/cgroup/kubepods.slice/*/*/cri-containerd-*.scope; do
	[ -f $scope/cgroup.procs ] || continue
	pid=$(head -n 1 $scope/cgroup.procs); [ -n "$pid" ] && [ "$(cat /proc/$pid/comm)" = pause ] || continue
	echo "$pid $(cat /proc/$pid/oom_score_adj) $(cut -d ' ' -f 1 /proc/$pid/attr/apparmor/current) $scope"
	n=$((n+1))
done; [ $n = 6 ]`

// sandboxScore is the OOM score adjustment of a Pod's sandbox.
const sandboxScore = -998

// podProcess is a line of showPods.
type podProcess struct {
	pid, oomScore int
	appArmor      string
	scope         string
}

func podProcesses(t *testing.T, m *Machine, limit int) []podProcess {
	t.Helper()
	var all []podProcess
	for line := range strings.Lines(waitFor(t, m, limit, showPods)) {
		fields := strings.Fields(line)
		require.Len(t, fields, 4, line)
		pid, err := strconv.Atoi(fields[0])
		require.NoError(t, err)
		score, err := strconv.Atoi(fields[1])
		require.NoError(t, err)
		all = append(all, podProcess{pid: pid, oomScore: score, appArmor: profileIn(fields[2]), scope: fields[3]})
	}
	return all
}

// TestKubeletUnderSystemd runs a kubelet without API server as a unit, with the systemd cgroup driver on cgroup v2, and
// checks what it makes of the three QoS classes, and that its restart leaves the containers alone. It is the short part that
// CI runs; -kubelet runs it with upstream's.
func TestKubeletUnderSystemd(t *testing.T) {
	m := startStandaloneKubelet(t, "pods", "")
	before := podProcesses(t, m, 300)
	requireQoS(t, m, before)

	output(t, m, "systemctl restart kubelet")
	waitFor(t, m, 120, "busybox wget -q -O - http://127.0.0.1:10248/healthz")
	require.Equal(t, before, podProcesses(t, m, 60), "the restart of the kubelet must not restart a container")
	require.Equal(t, "0", output(t, m, "systemctl show -P NRestarts kubelet"))
}

// TestKubeletAfterReboot checks that the static Pods come back with the machine, and after a power cut.
func TestKubeletAfterReboot(t *testing.T) {
	m := startStandaloneKubelet(t, "pods", "")
	podProcesses(t, m, 300)
	for _, stop := range []func() error{func() error { return m.Shutdown(t.Context()) }, m.PowerCut} {
		require.NoError(t, stop())
		require.NoError(t, m.Boot(t.Context()))
		requireQoS(t, m, podProcesses(t, m, 600))
	}
}

// startStandaloneKubelet boots a machine in which the kubelet starts the Pods of a directory in guest, with more configuration.
func startStandaloneKubelet(t *testing.T, pods, config string) *Machine {
	t.Helper()
	return startStandaloneKubeletOn(t, "containerd-shim-runc-v2", pods, config)
}

// startStandaloneKubeletOn is startStandaloneKubelet with a shim.
func startStandaloneKubeletOn(t *testing.T, shim, pods, config string) *Machine {
	t.Helper()
	m := start(t, Options{Shares: []Share{{Dir: guestShare(t), Path: share}}, Name: "node", MemoryMiB: 2048})
	output(t, m, "SHIM="+shim+" "+containerdScript(share, "10.100.0.0/24", pauseImage))
	importImage(t, m, share, pauseArchive(t))
	installKubelet(t, m, share, "10-standalone.conf")
	output(t, m, "mkdir -p /etc/kubernetes /var/log/pods-ends && cp -r "+share+"/guest/"+pods+" /etc/kubernetes/manifests && (cat "+share+
		"/guest/kubelet.yaml && echo "+quote(config)+") > /etc/kubernetes/kubelet.yaml && systemctl start kubelet")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.Output(context.WithoutCancel(t.Context()), "journalctl --no-pager -n 100 -u kubelet -u containerd"))
		}
	})
	return m
}

// requireQoS checks slices, weights, limits, OOM scores and AppArmor.
func requireQoS(t *testing.T, m *Machine, containers []podProcess) {
	t.Helper()
	scores := map[string][]int{}
	for _, c := range containers {
		if c.oomScore != sandboxScore { // containerd confines containers, not sandboxes
			require.Equal(t, "cri-containerd.apparmor.d", c.appArmor, c.scope)
		}
		class := "guaranteed"
		for _, other := range []string{"burstable", "besteffort"} {
			if strings.Contains(c.scope, "/kubepods-"+other+".slice/kubepods-"+other+"-pod") {
				class = other
			}
		}
		scores[class] = append(scores[class], c.oomScore)
	}
	// Each Pod is a sandbox, which is the last to be killed, and a container.
	require.ElementsMatch(t, []int{sandboxScore, -997}, scores["guaranteed"])
	require.ElementsMatch(t, []int{sandboxScore, 1000}, scores["besteffort"])
	require.Len(t, scores["burstable"], 2)
	require.Contains(t, scores["burstable"], sandboxScore)
	for _, score := range scores["burstable"] {
		require.True(t, score == sandboxScore || 2 <= score && score <= 999, "OOM score %d of the Burstable container", score)
	}
	values := strings.Fields(output(t, m, `set -eu
		cat /proc/$(systemctl show -P MainPID kubelet)/oom_score_adj
		cd /sys/fs/cgroup/kubepods.slice
		cat kubepods-besteffort.slice/cpu.weight kubepods-burstable.slice/cpu.weight kubepods-burstable.slice/*.slice/cpu.weight
		cat kubepods-pod*.slice/memory.max kubepods-pod*.slice/cpu.max
		systemctl show -P CPUWeight kubepods-burstable.slice
		systemctl is-active kubepods.slice kubepods-burstable.slice kubepods-besteffort.slice | sort -u`))
	require.Len(t, values, 9, "%q", values)
	require.Equal(t, "-999", values[0], "the kubelet's own OOM score")
	require.Equal(t, "1", values[1], "BestEffort Pods get what others leave")
	require.Equal(t, values[3], values[2], "the weight of all Burstable Pods is the sum of theirs, and there is one")
	require.NotEqual(t, "100", values[2], "the weight of all Burstable Pods is systemd's default")
	require.Equal(t, []string{"67108864", "20000", "100000"}, values[4:7], "limits of the Guaranteed Pod")
	require.Equal(t, values[2], values[7], "systemd knows another weight, which it will restore")
	require.Equal(t, "active", values[8])
}
