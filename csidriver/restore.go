package csidriver

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// settableFlags are the flags that a container can set on a raw block device that it may write to, and that can be cleared.
const settableFlags = unix.LO_FLAGS_AUTOCLEAR

// restore undoes what a container has changed of a raw block device that it had: no right but that to write to the device is needed
// for these ioctls, so the kernel cannot be asked to refuse them. They reach no other image, but would give the next user of
// the volume other bytes. It returns what had been changed, nil as a rule.
func (l *loops) restore(device *loop) (changed []string, err error) {
	file, err := l.devices.OpenPinned(device.device())
	if err != nil {
		return nil, fmt.Errorf("verify %q: %w", device.path, err)
	}
	defer file.Close()
	fd := int(file.Fd())
	info, err := unix.IoctlLoopGetStatus64(fd)
	if err != nil {
		return nil, fmt.Errorf("verify %q: %w", device.path, err)
	}
	if changed = changesOf(info); len(changed) > 0 {
		info.Offset, info.Sizelimit = 0, 0
		info.Flags &^= settableFlags
		if err := unix.IoctlLoopSetStatus64(fd, info); err != nil {
			return changed, fmt.Errorf("restore %s of %q: %w", strings.Join(changed, " and "), device.path, err)
		}
	}
	if info.Flags&unix.LO_FLAGS_DIRECT_IO != 0 {
		changed = append(changed, "direct I/O")
		err = errors.Join(err, unix.IoctlSetInt(fd, unix.LOOP_SET_DIRECT_IO, 0))
	}
	sectors, readErr := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/queue/logical_block_size", device.number))
	if now := strings.TrimSpace(string(sectors)); readErr == nil && now != strconv.Itoa(sectorSize) {
		changed = append(changed, "sector size")
		err = errors.Join(err, unix.IoctlSetInt(fd, unix.LOOP_SET_BLOCK_SIZE, sectorSize))
	}
	if err = errors.Join(err, readErr); err != nil {
		return changed, fmt.Errorf("restore %s of %q: %w", strings.Join(changed, " and "), device.path, err)
	}
	return changed, nil
}

// changesOf names what differs from the device as it was attached.
func changesOf(info *unix.LoopInfo64) (changed []string) {
	if info.Offset != 0 {
		changed = append(changed, "offset")
	}
	if info.Sizelimit != 0 {
		changed = append(changed, "size")
	}
	if info.Flags&settableFlags != 0 {
		changed = append(changed, "flags")
	}
	return changed
}

// restoreDevice restores the device of a raw block volume, for its next user.
func (d *Driver) restoreDevice(id string, device *loop) error {
	changed, err := d.loops.restore(device)
	if len(changed) > 0 {
		d.logger.Warn("a container had changed the loop device of its raw block volume; restored", "volume", id, "device", device.path,
			"changed", strings.Join(changed, ", "), "error", err)
	}
	return err
}
