package iscsi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/fswatch"
)

const (
	// diskTimeout is how long the kernel may take to read a disk that the target has.
	diskTimeout = 30 * time.Second
	// multipathTimeout is how long multipathd may take to join the paths of a disk.
	multipathTimeout = 10 * time.Second
	// recheckPeriod is after how long without an event the kernel's files are read again.
	recheckPeriod = time.Second
)

// kernel reads what the kernel has of iSCSI from sysfs, and removes disks.
type kernel struct {
	sys, dev         string
	multipathProgram string
	clock            clock.Clock
	logger           *slog.Logger
}

// session is a session of the initiator with a target.
type session struct {
	// dir is the session's directory in the tree of devices, which has the target's disks, host the name of its SCSI host.
	dir, host string
	portal    netip.AddrPort
}

// sessions lists the sessions with the target on the interface.
func (k kernel) sessions(iqn, iface string) ([]session, error) {
	class := filepath.Join(k.sys, "class/iscsi_session")
	entries, err := os.ReadDir(class)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the module is loaded for the first session
	}
	if err != nil {
		return nil, fmt.Errorf("list iscsi sessions: %w", err)
	}
	var found []session
	for _, entry := range entries {
		dir := filepath.Join(class, entry.Name())
		if readAttribute(dir, "targetname") != iqn || readAttribute(dir, "ifacename") != iface {
			continue
		}
		one, err := k.session(dir)
		if errors.Is(err, os.ErrNotExist) {
			continue // it ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		found = append(found, one)
	}
	return found, nil
}

func (k kernel) session(dir string) (session, error) {
	device, err := filepath.EvalSymlinks(filepath.Join(dir, "device"))
	if err != nil {
		return session{}, fmt.Errorf("read iscsi session: %w", err)
	}
	connections, err := filepath.Glob(filepath.Join(device, "connection*", "iscsi_connection", "connection*"))
	if err != nil || len(connections) == 0 {
		return session{}, fmt.Errorf("read iscsi session %s: it has no connection: %w", filepath.Base(dir), os.ErrNotExist)
	}
	address, err := netip.ParseAddr(readAttribute(connections[0], "persistent_address"))
	if err != nil {
		return session{}, fmt.Errorf("read iscsi session %s: %w", filepath.Base(dir), err)
	}
	port, err := strconv.ParseUint(readAttribute(connections[0], "persistent_port"), 10, 16)
	if err != nil {
		return session{}, fmt.Errorf("read iscsi session %s: %w", filepath.Base(dir), err)
	}
	return session{dir: device, host: filepath.Base(filepath.Dir(device)), portal: netip.AddrPortFrom(address, uint16(port))}, nil
}

// readAttribute reads a file of sysfs; it is empty if that has none.
func readAttribute(dir, name string) string {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// scan has the kernel look for one disk of the session, and for no others: those are for other nodes, or for volumes that no Pod uses yet.
func (k kernel) scan(s session, lun int32) error {
	file := filepath.Join(k.sys, "class/scsi_host", s.host, "scan")
	if err := os.WriteFile(file, fmt.Appendf(nil, "- - %d", lun), 0o200); err != nil {
		return fmt.Errorf("scan for the disk: %w", err)
	}
	return nil
}

// disk returns the name of the session's disk, such as sda; empty if the kernel does not have it yet. known says that it has its number.
func (k kernel) disk(s session, lun int32) (name string, known bool) {
	devices, _ := filepath.Glob(filepath.Join(s.dir, "target*", fmt.Sprintf("*:%d", lun))) // the pattern is a valid one
	for _, device := range devices {
		entries, err := os.ReadDir(filepath.Join(device, "block"))
		if err == nil && len(entries) > 0 {
			return entries[0].Name(), true
		}
	}
	return "", len(devices) > 0
}

// waitDisk returns the name of the session's disk, which it has the kernel look for, when its device can be used.
func (k kernel) waitDisk(ctx context.Context, s session, lun int32) (string, error) {
	name, known := k.disk(s, lun)
	if name == "" {
		if err := k.scan(s, lun); err != nil {
			return "", err
		}
		if name, known = k.disk(s, lun); !known { // the scan returns when the target has answered
			return "", fmt.Errorf("the target shows no disk with the number %d at %s: check what it grants the initiator, which is named in "+
				"/etc/iscsi/initiatorname.iscsi", lun, s.portal)
		}
	}
	ready := func() bool {
		name, _ = k.disk(s, lun)
		_, err := os.Stat(filepath.Join(k.dev, name))
		return name != "" && err == nil
	}
	if !k.await(ctx, k.dev, diskTimeout, ready) {
		return "", errors.Join(fmt.Errorf("the kernel could not read disk %d at %s: check its messages with dmesg", lun, s.portal), ctx.Err())
	}
	return name, nil
}

// await checks after each change in the directory whether ready returns true. It returns false after the timeout, or when ctx ends.
func (k kernel) await(ctx context.Context, dir string, timeout time.Duration, ready func() bool) bool {
	if ready() {
		return true
	}
	watcher := fswatch.New(k.logger, dir)
	defer func() { _ = watcher.Close() }()
	_ = watcher.Add(dir) // without it, the timer does it alone
	deadline, recheck := k.clock.NewTimer(timeout), k.clock.NewTimer(recheckPeriod)
	defer deadline.Stop()
	defer recheck.Stop()
	for !ready() {
		select {
		case <-watcher.Events():
		case <-recheck.C():
			recheck.Reset(recheckPeriod)
		case <-deadline.C():
			return ready()
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// multipath returns the name of the multipath device that uses the disk, such as dm-0; empty if there is none.
func (k kernel) multipath(disk string) string {
	holders, err := os.ReadDir(filepath.Join(k.sys, "class/block", disk, "holders"))
	if err != nil {
		return ""
	}
	for _, holder := range holders {
		if strings.HasPrefix(readAttribute(filepath.Join(k.sys, "class/block", holder.Name(), "dm"), "uuid"), "mpath-") {
			return holder.Name()
		}
	}
	return ""
}

// device returns the path of the device by which the disk is used, which all the names are paths to. If there is more than one it waits for
// multipathd, if that runs, to join them.
func (k kernel) device(ctx context.Context, disks []string) string {
	joined := ""
	find := func() bool {
		for _, disk := range disks {
			if joined = k.multipath(disk); joined != "" {
				return true
			}
		}
		return false
	}
	if !find() && len(disks) > 1 && k.multipathdRuns() {
		k.await(ctx, filepath.Join(k.dev, "mapper"), multipathTimeout, find)
	}
	if joined == "" {
		joined = disks[0]
	}
	return filepath.Join(k.dev, joined)
}

// multipathdSocket is the socket by which multipathd is asked, in the abstract namespace.
const multipathdSocket = "@/org/kernel/linux/storage/multipathd"

func (k kernel) multipathdRuns() bool {
	sockets, err := os.ReadFile("/proc/net/unix")
	return err == nil && strings.Contains(string(sockets), multipathdSocket)
}

// isUsed reports whether something on the machine holds the device: a mount, or another device.
// A device that is gone, or does not answer, is not used.
func (k kernel) isUsed(name string) bool {
	fd, err := unix.Open(filepath.Join(k.dev, name), unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err == unix.EBUSY
}

// remove removes a disk from the kernel, so that nothing is left of it when another one gets its number.
func (k kernel) remove(disk string) error {
	err := os.WriteFile(filepath.Join(k.sys, "class/block", disk, "device/delete"), []byte("1"), 0o200)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove disk %s: %w", disk, err)
	}
	return nil
}

// flush removes a multipath device, which fails while it is in use.
func (k kernel) flush(ctx context.Context, name string) error {
	out, err := exec.CommandContext(ctx, k.multipathProgram, "-f", filepath.Join(k.dev, name)).CombinedOutput()
	if err != nil && k.exists(name) {
		return fmt.Errorf("remove multipath device %s: %w: %s", name, err, out)
	}
	return nil
}

// exists reports whether the kernel has the block device.
func (k kernel) exists(name string) bool {
	_, err := os.Stat(filepath.Join(k.sys, "class/block", name))
	return err == nil
}
