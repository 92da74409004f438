package systemdunit

import (
	"bufio"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// GetUnit is systemd's.
func (manager) GetUnit(name string) (dbus.ObjectPath, *dbus.Error) {
	if name != "test.service" {
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

func TestStopsOfAService(t *testing.T) {
	server, client := connect(t)
	require.NoError(t, server.Export(manager{}, managerPath, managerIface))
	unit, err := prop.Export(server, testUnit, prop.Map{
		unitIface:    {"Job": {Value: job{Path: "/"}}},
		serviceIface: {"KillMode": {Value: killProcess}, "TimeoutStopUSec": {Value: uint64(240_000_000)}},
	})
	require.NoError(t, err)
	one, err := prop.Export(server, testJob, prop.Map{jobIface: {"JobType": {Value: "start"}}})
	require.NoError(t, err)
	_, err = server.RequestName(busName, dbus.NameFlagDoNotQueue)
	require.NoError(t, err)
	check := func(expected Stop, why string) {
		t.Helper()
		got, err := stopping(t.Context(), client, "GetUnitByPID", uint32(testPID))
		require.NoError(t, err)
		require.Equal(t, expected, got, why)
		got, err = stopping(t.Context(), client, "GetUnit", "test.service")
		require.NoError(t, err)
		require.Equal(t, expected, got, why)
	}
	check(Stop{}, "systemd does nothing with it")
	unit.SetMust(unitIface, "Job", job{ID: 7, Path: testJob})
	check(Stop{}, "it is started")
	one.SetMust(jobIface, "JobType", jobStop)
	check(Stop{Timeout: 4 * time.Minute}, "it is stopped")
	one.SetMust(jobIface, "JobType", jobRestart)
	check(Stop{Restart: true, Timeout: 4 * time.Minute}, "it is restarted")
	unit.SetMust(serviceIface, "KillMode", "mixed")
	check(Stop{Timeout: 4 * time.Minute}, "systemd kills its other processes")
	unit.SetMust(serviceIface, "TimeoutStopUSec", uint64(math.MaxUint64))
	got, err := stopping(t.Context(), client, "GetUnitByPID", uint32(testPID))
	require.NoError(t, err)
	require.Greater(t, got.Timeout, 24*time.Hour, "it may take for ever")
	_, err = stopping(t.Context(), client, "GetUnitByPID", uint32(1))
	require.ErrorContains(t, err, "find the unit of this process: no such unit")
}

func TestProcessOutsideOfUnits(t *testing.T) {
	t.Setenv(invocation, "")
	stop, err := Stopping(t.Context(), false)
	require.NoError(t, err)
	require.Zero(t, stop)
}

func TestServiceOfAProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cgroup")
	for text, want := range map[string]string{
		"0::/system.slice/berth.service\n":                                               "berth.service",
		"0::/system.slice/system-berth.slice/berth@two.service/x\n":                      "berth@two.service",
		"0::/user.slice/user-0.slice/session-1.scope\n":                                  "",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/vte-spawn-1.scope\n": "",
		"0::/\n": "",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		require.Equal(t, want, Of(file))
	}
	require.Empty(t, Of(file+".absent"))
}
