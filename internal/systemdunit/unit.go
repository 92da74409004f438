package systemdunit

import (
	"context"
	"errors"
	"fmt"
	"os"

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

// The values of systemd's D-Bus interface that say that a service starts again with its other processes left alone.
const (
	jobRestart  = "restart"
	killProcess = "process"
)

// Restarts reports whether systemd is stopping the service of this process in order to start it again, as `systemctl restart`
// does, and leaves the service's other processes alone meanwhile (KillMode=process). It is false outside of systemd's services.
func Restarts(ctx context.Context) (bool, error) {
	if os.Getenv(invocation) == "" {
		return false, nil
	}
	conn, err := dbus.ConnectSystemBus(dbus.WithContext(ctx))
	if err != nil {
		return false, fmt.Errorf("connect to the system's D-Bus: %w", err)
	}
	restarts, err := restarts(ctx, conn, os.Getpid())
	return restarts, errors.Join(err, conn.Close())
}

func restarts(ctx context.Context, conn *dbus.Conn, pid int) (bool, error) {
	var unit dbus.ObjectPath
	if err := conn.Object(busName, managerPath).CallWithContext(ctx, managerIface+".GetUnitByPID", 0, uint32(pid)).Store(&unit); err != nil {
		return false, fmt.Errorf("find the unit of this process: %w", err)
	}
	mode, err := property[string](ctx, conn, unit, serviceIface, "KillMode")
	if err != nil {
		return false, err
	}
	// A unit without a job has the path /.
	job, err := property[struct {
		ID   uint32
		Path dbus.ObjectPath
	}](ctx, conn, unit, unitIface, "Job")
	if err != nil || job.ID == 0 || mode != killProcess {
		return false, err
	}
	kind, err := property[string](ctx, conn, job.Path, jobIface, "JobType")
	return kind == jobRestart, err
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
