//go:build integration

package integration

import (
	"bufio"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	"github.com/stretchr/testify/require"
)

const (
	systemdName = "org.freedesktop.systemd1"
	systemdUnit = dbus.ObjectPath("/org/freedesktop/systemd1/unit/berth_2eservice")
	systemdJob  = dbus.ObjectPath("/org/freedesktop/systemd1/job/1")
)

// systemd stands for systemd on a real D-Bus, because this machine may have none: it has one unit, of all processes.
type systemd struct{}

// GetUnitByPID is systemd's.
func (systemd) GetUnitByPID(uint32) (dbus.ObjectPath, *dbus.Error) { return systemdUnit, nil }

// standInForSystemd makes this process the systemd of the programs that it starts. The result sets the job that systemd has
// for their unit.
func standInForSystemd(t *testing.T) (setJob func(kind string)) {
	t.Helper()
	program, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("install the package dbus-daemon to run this test")
	}
	cmd := exec.Command(program, "--session", "--nofork", "--nopidfile", "--print-address", "--address=unix:path="+filepath.Join(t.TempDir(), "bus"))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	address = strings.TrimSpace(address)
	conn, err := dbus.Connect(address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.Export(systemd{}, "/org/freedesktop/systemd1", systemdName+".Manager"))
	type reference struct {
		ID   uint32
		Path dbus.ObjectPath
	}
	_, err = prop.Export(conn, systemdUnit, prop.Map{
		systemdName + ".Unit":    {"Job": {Value: reference{ID: 1, Path: systemdJob}}},
		systemdName + ".Service": {"KillMode": {Value: "process"}, "TimeoutStopUSec": {Value: uint64(240_000_000)}},
	})
	require.NoError(t, err)
	job, err := prop.Export(conn, systemdJob, prop.Map{systemdName + ".Job": {"JobType": {Value: "stop"}}})
	require.NoError(t, err)
	_, err = conn.RequestName(systemdName, dbus.NameFlagDoNotQueue)
	require.NoError(t, err)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", address)
	t.Setenv("INVOCATION_ID", "1")
	return func(kind string) { job.SetMust(systemdName+".Job", "JobType", kind) }
}

// slowEnd is a Pod that needs more than 10 s, which it has when a user stops berth, and says when it has ended.
const slowEnd = `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "slow", "labels": {"name": "slow"}}, "spec": {"terminationGracePeriodSeconds": 30,
	"volumes": [{"name": "host", "hostPath": {"path": "%s"}}], "containers": [%s]}}`

// TestRestartOfTheServiceKeepsPods restarts berth as `systemctl restart` does: its Pods run on. A stop ends them, within their grace periods.
func TestRestartOfTheServiceKeepsPods(t *testing.T) {
	setJob := standInForSystemd(t)
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	c.apply(podManifest("a", shell("date +%N > /started; "+sleepScript, ""), ""))
	before := c.waitPod("name=a", "running", isReady)
	started := c.mustRun("kubectl", "exec", "a", "--", "/bin/busybox", "cat", "/started")

	setJob("restart")
	c.stop()
	require.NotEmpty(t, c.processes(), "the Pod's shim runs on")
	c.up("--unsafe-no-fsync")
	after := c.waitPod("name=a", "running", isReady)
	require.Equal(t, before.UID, after.UID)
	require.Equal(t, before.Status.ContainerStatuses[0].ContainerID, after.Status.ContainerStatuses[0].ContainerID)
	require.Zero(t, after.Status.ContainerStatuses[0].RestartCount)
	require.Equal(t, started, c.mustRun("kubectl", "exec", "a", "--", "/bin/busybox", "cat", "/started"))

	host := t.TempDir()
	c.apply(fmt.Sprintf(slowEnd, host, shell("trap '/bin/busybox sleep 12; echo done > /host/ended; exit 0' TERM; while :; do /bin/busybox sleep 1000 & wait; done",
		`"name": "main", "volumeMounts": [{"name": "host", "mountPath": "/host"}]`)))
	c.waitPod("name=slow", "running", isReady)
	setJob("stop")
	c.stop()
	require.FileExists(t, filepath.Join(host, "ended"))
	require.Empty(t, c.leftovers())
}
