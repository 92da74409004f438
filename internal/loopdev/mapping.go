package loopdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoMapper says that the kernel has no device mapper.
var ErrNoMapper = errors.New(`the kernel has no device mapper (the module "dm_mod")`)

const (
	// mappingPrefix begins the names of mappings, before the number of their loop device.
	mappingPrefix = "berth-loop"
	// mapperMisc is the device mapper's name in /proc/misc.
	mapperMisc = "device-mapper"
	// cancelRemove is the message that keeps a device that is to be removed when its last user closes it.
	cancelRemove = "@cancel_deferred_remove"
	mapSector    = 512
	// mapAlign is the alignment of the parts of a mapping.
	mapAlign = 8
)

// Mapping is a device of the device mapper that has the bytes of a loop device, and none of its ioctls: who has a loop device open can
// give it another size or offset or detach it, with no privilege but the right to write.
//
// It consists of two parts, and there lies the protection: the device mapper hands the ioctls that it does not know to the device below,
// unless there is more than one.
type Mapping struct {
	// Path is that of the device's node, Number its minor number.
	Path   string
	Number int
}

// CheckMapper returns ErrNoMapper if there cannot be mappings here. It loads the kernel's module where that happens by itself.
func (d Devices) CheckMapper() error {
	control, err := d.openMapper()
	if err != nil {
		return err
	}
	return control.Close()
}

// openMapper opens the device mapper. It creates its node if that is missing.
func (d Devices) openMapper() (*os.File, error) {
	path := filepath.Join(d.dev, "mapper", "control")
	control, err := os.OpenFile(path, os.O_RDWR, 0)
	if err == nil {
		return control, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrNoMapper, err)
	}
	number, err := miscNumber(mapperMisc)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	const miscMajor = 10
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(miscMajor, number))); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, &os.PathError{Op: "mknod", Path: path, Err: err}
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// miscNumber returns the minor number of a miscellaneous device.
func miscNumber(name string) (uint32, error) {
	list, err := os.ReadFile("/proc/misc")
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoMapper, err)
	}
	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); len(fields) == 2 && fields[1] == name {
			number, err := strconv.ParseUint(fields[0], 10, 32)
			return uint32(number), err
		}
	}
	return 0, ErrNoMapper
}

// FindMapping returns the mapping of the loop device, nil if it has none.
func (d Devices) FindMapping(number int) (*Mapping, error) {
	holders, err := os.ReadDir(filepath.Join(d.sys, "loop"+strconv.Itoa(number), "holders"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the mapping of loop device %d: %w", number, err)
	}
	for _, holder := range holders {
		name, err := os.ReadFile(filepath.Join(d.sys, holder.Name(), "dm", "name"))
		if err != nil || strings.TrimSpace(string(name)) != mappingName(number) {
			continue // of another program, or gone meanwhile
		}
		minor, err := strconv.Atoi(strings.TrimPrefix(holder.Name(), "dm-"))
		if err != nil {
			return nil, fmt.Errorf("find the mapping of loop device %d: number of %s: %w", number, holder.Name(), err)
		}
		return &Mapping{Path: filepath.Join(d.dev, holder.Name()), Number: minor}, nil
	}
	return nil, nil
}

func mappingName(number int) string { return mappingPrefix + strconv.Itoa(number) }

// Map returns the mapping of a loop device, and creates it if there is none. One that exists gets the size that the loop device has
// now.
func (d Devices) Map(device Device, readonly bool) (*Mapping, error) {
	m, err := d.mapDevice(device, readonly)
	if err != nil {
		return nil, fmt.Errorf("map %q: %w", d.Path(device.Number), err)
	}
	return m, nil
}

func (d Devices) mapDevice(device Device, readonly bool) (*Mapping, error) {
	held, err := d.OpenPinned(device)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	size, err := held.Seek(0, 2)
	if err != nil {
		return nil, err
	}
	control, err := d.openMapper()
	if err != nil {
		return nil, err
	}
	defer control.Close()
	name := mappingName(device.Number)
	err = mapperCall(control, unix.DM_DEV_CREATE, name, 0, nil)
	created := err == nil
	if errors.Is(err, unix.EBUSY) { // it exists
		err = keepMapping(control, name)
	}
	if err != nil {
		return nil, err
	}
	table, err := mapTable(device.Number, size/mapSector)
	if err == nil {
		flags := uint32(0)
		if readonly {
			flags = unix.DM_READONLY_FLAG
		}
		err = mapperCall(control, unix.DM_TABLE_LOAD, name, flags, table)
	}
	if err == nil {
		err = mapperCall(control, unix.DM_DEV_SUSPEND, name, 0, nil) // without the flag to suspend, this puts the table in force
	}
	if err != nil {
		if created {
			err = errors.Join(err, mapperCall(control, unix.DM_DEV_REMOVE, name, 0, nil))
		}
		return nil, err
	}
	m, err := d.FindMapping(device.Number)
	if err == nil && m == nil {
		err = fmt.Errorf("device %q disappeared", name)
	}
	if err != nil {
		return nil, err
	}
	return m, d.makeMappingNode(m)
}

// makeMappingNode creates the mapping's node if neither udev nor devtmpfs has.
func (d Devices) makeMappingNode(m *Mapping) error {
	if _, err := os.Lstat(m.Path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	number, err := os.ReadFile(filepath.Join(d.sys, filepath.Base(m.Path), "dev"))
	if err != nil {
		return err
	}
	major, minor, _ := strings.Cut(strings.TrimSpace(string(number)), ":")
	majorNumber, err := strconv.ParseUint(major, 10, 32)
	if err != nil {
		return fmt.Errorf("read the number of %q: %w", m.Path, err)
	}
	minorNumber, err := strconv.ParseUint(minor, 10, 32)
	if err != nil {
		return fmt.Errorf("read the number of %q: %w", m.Path, err)
	}
	err = unix.Mknod(m.Path, unix.S_IFBLK|0o660, int(unix.Mkdev(uint32(majorNumber), uint32(minorNumber))))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "mknod", Path: m.Path, Err: err}
	}
	return nil
}

// Unmap removes the mapping of a loop device, immediately or when its last user closes it. One that does not exist is no error.
func (d Devices) Unmap(number int) error {
	m, err := d.FindMapping(number)
	if err != nil || m == nil {
		return err
	}
	control, err := d.openMapper()
	if err != nil {
		return fmt.Errorf("unmap %q: %w", d.Path(number), err)
	}
	defer control.Close()
	err = mapperCall(control, unix.DM_DEV_REMOVE, mappingName(number), unix.DM_DEFERRED_REMOVE, nil)
	if err != nil && !errors.Is(err, unix.ENXIO) {
		return fmt.Errorf("unmap %q: %w", d.Path(number), err)
	}
	return nil
}

// keepMapping keeps a mapping that is to be removed when its last user closes it.
func keepMapping(control *os.File, name string) error {
	message := make([]byte, 8, 8+len(cancelRemove)+1) // a sector, which has no meaning here
	message = append(append(message, cancelRemove...), 0)
	err := mapperCall(control, unix.DM_TARGET_MSG, name, 0, message)
	if errors.Is(err, unix.EINVAL) { // it was not to be removed
		return nil
	}
	return err
}

// mapTable is the table of a mapping: all sectors of the loop device in two parts.
func mapTable(number int, sectors int64) ([]byte, error) {
	first := min(sectors/2, int64(mapAlign))
	if first == 0 {
		return nil, fmt.Errorf("it has %d sectors, and two are needed", sectors)
	}
	parts := [][2]int64{{0, first}, {first, sectors - first}}
	var table []byte
	for _, part := range parts {
		spec := unix.DmTargetSpec{Sector_start: uint64(part[0]), Length: uint64(part[1])}
		copy(spec.Target_type[:], "linear")
		arguments := append(fmt.Appendf(nil, "%d:%d %d", Major, number, part[0]), 0)
		for len(arguments)%8 != 0 {
			arguments = append(arguments, 0)
		}
		spec.Next = uint32(unsafe.Sizeof(spec)) + uint32(len(arguments))
		table = append(table, unsafe.Slice((*byte)(unsafe.Pointer(&spec)), unsafe.Sizeof(spec))...)
		table = append(table, arguments...)
	}
	return table, nil
}

// mapperCall is one call of the device mapper, for the device of that name.
func mapperCall(control *os.File, request uint, name string, flags uint32, data []byte) error {
	header := unix.DmIoctl{
		Version: [3]uint32{4, 0, 0}, Data_size: uint32(unsafe.Sizeof(unix.DmIoctl{})) + uint32(len(data)),
		Data_start: uint32(unsafe.Sizeof(unix.DmIoctl{})), Flags: flags,
	}
	if request == unix.DM_TABLE_LOAD {
		header.Target_count = 2
	}
	copy(header.Name[:len(header.Name)-1], name)
	buffer := append(unsafe.Slice((*byte)(unsafe.Pointer(&header)), unsafe.Sizeof(header)), data...)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, control.Fd(), uintptr(request), uintptr(unsafe.Pointer(&buffer[0]))); errno != 0 {
		return os.NewSyscallError("device mapper "+mapperVerb(request), errno)
	}
	return nil
}

func mapperVerb(request uint) string {
	return map[uint]string{
		unix.DM_DEV_CREATE: "create", unix.DM_DEV_REMOVE: "remove", unix.DM_TABLE_LOAD: "load",
		unix.DM_DEV_SUSPEND: "resume", unix.DM_TARGET_MSG: "message",
	}[request]
}
