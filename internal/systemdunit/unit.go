package systemdunit

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

const (
	busName      = "org.freedesktop.systemd1"
	managerPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	managerIface = busName + ".Manager"
	unitIface    = busName + ".Unit"
	serviceIface = busName + ".Service"
	jobIface     = busName + ".Job"

	// invocation is the variable that systemd sets for the processes of units.
	invocation = "INVOCATION_ID"
)

// The values of systemd's D-Bus interface that say that a service is stopped, that it starts again then, and that its other processes
// are left alone.
const (
	jobStop     = "stop"
	jobRestart  = "restart"
	killProcess = "process"
)

// Stop is how systemd stops the service of this process. The zero value is that it does not.
type Stop struct {
	// Restart says that the service starts again then, as `systemctl restart` does, and that its other processes are left alone meanwhile
	// (KillMode=process).
	Restart bool
	// Timeout is how long systemd waits before it kills the service (TimeoutStopSec).
	Timeout time.Duration
}

// Stopping returns how systemd stops the service of this process, if it does. A process in a PID namespace of its own is found by its
// cgroup.
func Stopping(ctx context.Context, ownPIDs bool) (Stop, error) {
	if os.Getenv(invocation) == "" {
		return Stop{}, nil
	}
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return Stop{}, fmt.Errorf("connect to the system's D-Bus: %w", err)
	}
	defer conn.Close()
	if !ownPIDs {
		return stopping(ctx, conn, "GetUnitByPID", uint32(os.Getpid()))
	}
	if service := Of("/proc/self/cgroup"); service != "" {
		return stopping(ctx, conn, "GetUnit", service)
	}
	return Stop{}, nil
}

// stopping asks about the unit that a method of systemd finds.
func stopping(ctx context.Context, conn *dbus.Conn, find string, by any) (stop Stop, err error) {
	var unit dbus.ObjectPath
	if err := conn.Object(busName, managerPath).CallWithContext(ctx, managerIface+"."+find, 0, by).Store(&unit); err != nil {
		return stop, fmt.Errorf("find the unit of this process: %w", err)
	}
	// A unit without a job has the path /.
	job, err := property[struct {
		ID   uint32
		Path dbus.ObjectPath
	}](ctx, conn, unit, unitIface, "Job")
	if err != nil || job.ID == 0 {
		return stop, err
	}
	kind, err := property[string](ctx, conn, job.Path, jobIface, "JobType")
	if err != nil || kind != jobStop && kind != jobRestart {
		return stop, err
	}
	mode, err := property[string](ctx, conn, unit, serviceIface, "KillMode")
	if err != nil {
		return stop, err
	}
	microseconds, err := property[uint64](ctx, conn, unit, serviceIface, "TimeoutStopUSec")
	if err != nil {
		return stop, err
	}
	stop.Restart = kind == jobRestart && mode == killProcess
	stop.Timeout = time.Duration(min(microseconds, math.MaxInt64/uint64(time.Microsecond))) * time.Microsecond
	return stop, nil
}

// Of returns the service of systemd that a process is in, by its file of cgroups; empty if it is in none. The session of a desktop is none,
// though the manager of its user is one.
func Of(cgroupFile string) string {
	data, err := os.ReadFile(cgroupFile)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		_, path, _ := strings.Cut(strings.TrimSpace(line), "/")
		for element := range strings.SplitSeq(path, "/") {
			if strings.HasPrefix(element, "user@") {
				break
			}
			if strings.HasSuffix(element, ".service") {
				return element
			}
		}
	}
	return ""
}

// property reads a property of one of systemd's objects.
func property[T any](ctx context.Context, conn *dbus.Conn, path dbus.ObjectPath, iface, name string) (value T, err error) {
	call := conn.Object(busName, path).CallWithContext(ctx, "org.freedesktop.DBus.Properties.Get", 0, iface, name)
	var variant dbus.Variant
	if err = call.Store(&variant); err == nil {
		err = variant.Store(&value)
	}
	if err != nil {
		return value, fmt.Errorf("read %s of %s from systemd: %w", name, path, err)
	}
	return value, nil
}
