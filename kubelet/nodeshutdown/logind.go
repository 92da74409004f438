package nodeshutdown

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/berth-dev/berth/internal/atomicfile"
)

const (
	logindName   = "org.freedesktop.login1"
	logindPath   = dbus.ObjectPath("/org/freedesktop/login1")
	logindIface  = logindName + ".Manager"
	systemdName  = "org.freedesktop.systemd1"
	systemdPath  = dbus.ObjectPath("/org/freedesktop/systemd1")
	systemdIface = systemdName + ".Manager"
	// dropIn is the file, below Config.LogindDir, by which the kubelet raises logind's limit of a delay.
	dropIn = "99-kubelet.conf"
	// inhibitTimeout bounds the call that takes a lock.
	inhibitTimeout = 10 * time.Second
	// reloadWait bounds how long logind may take to read its configuration again.
	reloadWait = 5 * time.Second
	// reloadPeriod is how often its limit is read meanwhile.
	reloadPeriod = 50 * time.Millisecond
)

// logind is a connection to systemd-logind.
type logind struct {
	conn    *dbus.Conn
	signals chan *dbus.Signal
}

// connect connects to logind, and subscribes to its announcements of shutdowns. An empty address is the system's bus.
func connect(ctx context.Context, address string) (*logind, error) {
	var conn *dbus.Conn
	var err error
	if address == "" {
		conn, err = dbus.ConnectSystemBus()
	} else {
		conn, err = dbus.Connect(address)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the system's D-Bus (is this machine run by systemd?): %w", err)
	}
	l := &logind{conn: conn, signals: make(chan *dbus.Signal, 16)}
	conn.Signal(l.signals) // closed with the connection
	err = conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(logindIface), dbus.WithMatchMember("PrepareForShutdown"),
		dbus.WithMatchObjectPath(logindPath))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("subscribe to logind's announcements of shutdowns: %w", err), conn.Close())
	}
	return l, nil
}

// property reads a property of logind.
func property[T any](l *logind, name string) (T, error) {
	var value T
	variant, err := l.conn.Object(logindName, logindPath).GetProperty(logindIface + "." + name)
	if err != nil {
		return value, fmt.Errorf("read %s of logind: %w", name, err)
	}
	value, ok := variant.Value().(T)
	if !ok {
		return value, fmt.Errorf("read %s of logind: it is %v, a %s", name, variant, variant.Signature())
	}
	return value, nil
}

// maxDelay returns for how long logind lets a lock delay a shutdown.
func (l *logind) maxDelay() (time.Duration, error) {
	microseconds, err := property[uint64](l, "InhibitDelayMaxUSec")
	return time.Duration(min(microseconds, uint64(1<<62)/uint64(time.Microsecond))) * time.Microsecond, err
}

// inhibit takes a lock that delays shutdowns until it is closed.
func (l *logind) inhibit(ctx context.Context) (*os.File, error) {
	// A call that is cancelled would leave a lock that nothing releases.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), inhibitTimeout)
	defer cancel()
	var fd dbus.UnixFD
	err := l.conn.Object(logindName, logindPath).CallWithContext(ctx, logindIface+".Inhibit", 0, "shutdown", "kubelet",
		"the kubelet ends the Pods of this node", "delay").Store(&fd)
	if err != nil {
		return nil, fmt.Errorf("take a lock of logind that delays the machine's shutdown: %w", err)
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}

// allowDelay has logind allow a delay, by a file of its configuration, unless it does.
func (l *logind) allowDelay(ctx context.Context, dir string, wanted time.Duration) error {
	now, err := l.maxDelay()
	if err != nil || now >= wanted {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of logind's configuration: %w", err)
	}
	file := filepath.Join(dir, dropIn)
	seconds := int64((wanted + time.Second - 1) / time.Second) // rounded up, or what logind allows would never be enough
	text := fmt.Sprintf("# Written by the kubelet for shutdownGracePeriod.\n[Login]\nInhibitDelayMaxSec=%d\n", seconds)
	if err := atomicfile.Write(file, []byte(text), 0o644); err != nil {
		return fmt.Errorf("allow a longer delay of shutdowns in logind's configuration: %w", err)
	}
	const hangup = int32(1)
	if err := l.conn.Object(systemdName, systemdPath).CallWithContext(ctx, systemdIface+".KillUnit", 0, "systemd-logind.service", "all",
		hangup).Err; err != nil {
		return fmt.Errorf("have logind read its configuration again: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, reloadWait)
	defer cancel()
	ticker := time.NewTicker(reloadPeriod)
	defer ticker.Stop()
	for {
		if now, err = l.maxDelay(); err != nil || now >= wanted {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("logind delays a shutdown for %s at most, not for the %s of the grace periods: another file may overrule "+
				"InhibitDelayMaxSec of %s", now, wanted, file)
		}
	}
}

// announced returns what a signal announces: a shutdown, or that it was cancelled.
func announced(signal *dbus.Signal) (shutdown, ok bool) {
	if signal.Name != logindIface+".PrepareForShutdown" || len(signal.Body) != 1 {
		return false, false
	}
	shutdown, ok = signal.Body[0].(bool)
	return shutdown, ok
}
