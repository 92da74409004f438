//go:build integration

package integration

import (
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/internal/pidfile"
)

// postgresFaults are what a round may do: kill a child of berth up by its name, or what fault says. The node process has the kubelet, the CSI
// driver and the controllers.
var postgresFaults = []string{
	"node", "node", "node", "containerd", "containerd", "controlplane", "kube-proxy", "dns", "shim", "postgres",
	"supervisor", "everything", "delete", "delete now", "delete by force",
}

// fault causes one. The API server may be away, in which case nothing is deleted.
func (w *postgresChaos) fault(name string, random *rand.Rand) {
	switch name {
	case "shim":
		w.killOneOf(random, func(command string) bool { return strings.Contains(command, "/containerd-shim-") })
	case "postgres":
		w.killOneOf(random, func(command string) bool { return strings.HasPrefix(command, "postgres") })
	case "supervisor":
		w.killBerth()
		w.up("--unsafe-no-fsync")
	case "everything":
		w.killAll()
		w.up("--unsafe-no-fsync")
	case "delete":
		w.deletePostgres()
	case "delete now":
		w.deletePostgres("--grace-period=1")
	case "delete by force":
		w.deletePostgres("--grace-period=0", "--force")
	default:
		w.killChild(name)
	}
}

// killChild kills a child of berth up.
func (p *postgresCluster) killChild(name string) {
	if pid := pidfile.Running(pidfile.Proc, filepath.Join(p.runDir(), name+".pid")); pid != 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may be ending
	}
}

func (w *postgresChaos) deletePostgres(flags ...string) {
	_, _ = w.run(append([]string{"kubectl", "delete", "pod", postgresPod, "--wait=false", "--request-timeout=10s"}, flags...)...)
}

// killOneOf kills one of the processes whose command line matches.
func (w *postgresChaos) killOneOf(random *rand.Rand, matches func(command string) bool) {
	processes := w.processes()
	maps.DeleteFunc(processes, func(_ int, command string) bool { return !matches(command) })
	pids := slices.Sorted(maps.Keys(processes))
	if len(pids) > 0 {
		_ = syscall.Kill(pids[random.IntN(len(pids))], syscall.SIGKILL) // it may be ending
	}
}
