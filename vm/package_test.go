//go:build vm

package vm

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var debsFlag = flag.String("debs", "", "directory for the packages of TestPackage, which a next run takes as they are (default: one that is removed)")

// debs makes two Debian packages of the built programs, of which the second has another berth, in a directory for a machine.
func debs(t *testing.T) (_, older, newer string) {
	t.Helper()
	share, err := filepath.Abs(*debsFlag)
	require.NoError(t, err)
	if *debsFlag == "" {
		share = t.TempDir()
	}
	for i, version := range []string{"0.1.0", "0.1.1"} {
		name := "dist/berth_" + version + "_amd64.deb"
		*[]*string{&older, &newer}[i] = "/share/" + name
		if _, err := os.Stat(filepath.Join(share, name)); err == nil {
			continue
		}
		programs := filepath.Join(share, version)
		runHost(t, "mkdir", programs)
		copyClusterPrograms(t, programs)
		// As make build does, of which all is in Go's cache but the version.
		runHost(t, "env", "CGO_ENABLED=1", "go", "-C", "..", "build", "-trimpath", "-ldflags", "-s -w -X github.com/berth-dev/berth/version.Berth="+version,
			"-o", filepath.Join(programs, "berth"), "./cmd/berth")
		runHost(t, "env", "CGO_ENABLED=1", "FORMATS=deb", "../hack/dist.sh", programs, "amd64", version, filepath.Join(share, "dist"))
		runHost(t, "rm", "-rf", programs)
	}
	runHost(t, "cp", "guest/package-pod.yaml", share)
	return share, older, newer
}

// TestPackage installs Berth from a Debian package, which starts a Kubernetes; restarts it, reboots the machine, upgrades, removes and
// purges the package, with Pods that record whether they were disturbed. One ends more slowly than a user waits, and the critical one after it.
func TestPackage(t *testing.T) {
	files, older, newer := debs(t)
	m := start(t, Options{Shares: []Share{{Dir: files, Path: share}}, Name: "node", MemoryMiB: 3072})
	ready := func() {
		t.Helper()
		waitFor(t, m, 300, `[ "$(berth kubectl get pods -o jsonpath='{.items[*].status.conditions[?(@.type=="Ready")].status}')" = "True True" ]`)
	}
	starts, ends := []string{"starts", "critical starts"}, []string{"ends", "critical ends"}
	// witness checks what the Pods have written: their starts, and after each of their ends, which have an order, their next starts.
	witness := func(lives int, ended bool, why string) {
		t.Helper()
		lines := strings.Split(output(t, m, "cat /var/log/witness/witness"), "\n")
		for life := range lives {
			require.GreaterOrEqual(t, len(lines), 2, why)
			require.ElementsMatch(t, starts, lines[:2], why)
			lines = lines[2:]
			if life < lives-1 || ended {
				require.GreaterOrEqual(t, len(lines), 2, why)
				require.Equal(t, ends, lines[:2], why)
				lines = lines[2:]
			}
		}
		require.Empty(t, lines, why)
	}

	output(t, m, "dpkg -i "+older)
	require.Equal(t, "active", output(t, m, "systemctl is-active berth"), "installing starts it, and waits until it is ready")
	require.Equal(t, "enabled", output(t, m, "systemctl is-enabled berth"))
	require.Contains(t, output(t, m, "systemctl show -P StatusText berth"), "kubeconfig /var/lib/berth/admin.kubeconfig")
	require.Contains(t, output(t, m, "berth up --print-config"), "api-port: 6443 # of the cluster in /var/lib/berth")
	waitFor(t, m, 120, "berth kubectl get serviceaccount default")
	output(t, m, "berth kubectl apply -f /share/package-pod.yaml")
	ready()
	witness(1, false, "they run")

	output(t, m, "systemctl restart berth")
	ready()
	witness(1, false, "a restart leaves Pods alone")
	repairs := output(t, m, "journalctl -b -u berth -o cat | grep -E '^(loaded kernel modules|raised fs)'")
	t.Log(repairs)
	require.Regexp(t, `\Aloaded kernel modules: .*overlay.*br_netfilter.*\nraised fs\.inotify\.max_user_instances from [0-9]+ to [0-9]+ .*\z`, repairs, "what the machine lacks is said once")

	require.NoError(t, m.Reboot(t.Context()))
	waitFor(t, m, 600, "[ $(wc -l < /var/log/witness/witness) = 6 ]")
	witness(2, false, "a reboot ends Pods within their grace periods, the critical one last, and they come back")
	waitFor(t, m, 300, "systemctl is-active berth")

	require.Contains(t, output(t, m, "berth upgrade --check"), "`systemctl restart berth.service` starts it with the installed berth, and its Pods run on")
	output(t, m, "dpkg -i "+newer)
	require.Contains(t, output(t, m, "berth version"), "0.1.1")
	require.Equal(t, "active", output(t, m, "systemctl is-active berth"))
	ready()
	require.Contains(t, output(t, m, "cat /var/lib/berth/cluster.json"), `"berth": "0.1.1"`)
	witness(2, false, "an upgrade leaves Pods alone")

	output(t, m, "dpkg -r berth")
	witness(2, true, "removing ends the Pods in order")
	output(t, m, "[ -f /var/lib/berth/cluster.json ] && ! [ -e /usr/bin/berth ] && ! [ -e /usr/libexec/berth ]")
	require.Empty(t, output(t, m, "pgrep -l berth; pgrep -l containerd; true"))

	output(t, m, "dpkg -P berth")
	require.Empty(t, output(t, m, "ls -d /var/lib/berth* /etc/berth 2>/dev/null || true"))
	require.Empty(t, output(t, m, "grep berth /proc/self/mountinfo || true"))
}
