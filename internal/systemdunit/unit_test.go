package systemdunit

import (
	"bufio"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
	"github.com/stretchr/testify/require"
)

const (
	testUnit = dbus.ObjectPath("/org/freedesktop/systemd1/unit/test_2eservice")
	testJob  = dbus.ObjectPath("/org/freedesktop/systemd1/job/7")
	testPID  = 4711
)

// job is the value of a unit's property Job.
type job struct {
	ID   uint32
	Path dbus.ObjectPath
}

// manager stands for systemd: a test cannot have its machine's restart it.
type manager struct{}

// GetUnitByPID is systemd's.
func (manager) GetUnitByPID(pid uint32) (dbus.ObjectPath, *dbus.Error) {
	if pid != testPID {
		return "", dbus.MakeFailedError(errors.New("no such unit"))
	}
	return testUnit, nil
}

// connect starts a D-Bus daemon of the test's own, and returns two connections to it.
func connect(t *testing.T) (server, client *dbus.Conn) {
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
	for _, conn := range []**dbus.Conn{&server, &client} {
		*conn, err = dbus.Connect(strings.TrimSpace(address))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, (*conn).Close()) })
	}
	return server, client
}

func TestRestartsOfAService(t *testing.T) {
	server, client := connect(t)
	require.NoError(t, server.Export(manager{}, managerPath, managerIface))
	unit, err := prop.Export(server, testUnit, prop.Map{
		unitIface:    {"Job": {Value: job{Path: "/"}}},
		serviceIface: {"KillMode": {Value: killProcess}},
	})
	require.NoError(t, err)
	one, err := prop.Export(server, testJob, prop.Map{jobIface: {"JobType": {Value: "stop"}}})
	require.NoError(t, err)
	_, err = server.RequestName(busName, dbus.NameFlagDoNotQueue)
	require.NoError(t, err)
	check := func(expected bool, why string) {
		t.Helper()
		got, err := restarts(t.Context(), client, testPID)
		require.NoError(t, err)
		require.Equal(t, expected, got, why)
	}
	check(false, "systemd does nothing with it")
	unit.SetMust(unitIface, "Job", job{ID: 7, Path: testJob})
	check(false, "it is stopped")
	one.SetMust(jobIface, "JobType", jobRestart)
	check(true, "it is restarted")
	unit.SetMust(serviceIface, "KillMode", "mixed")
	check(false, "systemd kills its other processes")
	_, err = restarts(t.Context(), client, 1)
	require.ErrorContains(t, err, "find the unit of this process: no such unit")
}

func TestProcessOutsideOfUnits(t *testing.T) {
	t.Setenv(invocation, "")
	restarts, err := Restarts(t.Context())
	require.NoError(t, err)
	require.False(t, restarts)
}
