package csidriver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ioctls that grow mounted filesystems, and that ask xfs for its shape.
const (
	ext4ResizeFS  = 0x40086610
	xfsGeometryV1 = 0x80705864
	xfsGrowData   = 0x4010586e
)

// errGrowNotPermitted says that the kernel lets only more privileged processes grow a mounted ext4.
var errGrowNotPermitted = errors.New("growing a mounted ext4 needs the capability CAP_SYS_RESOURCE")

// growMounted expands the filesystem mounted on path to the size of its device.
func growMounted(device *loop, fsType, path string) error {
	size, err := deviceSize(device)
	if err != nil {
		return err
	}
	dir, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("grow filesystem: %w", err)
	}
	defer dir.Close()
	if fsType == fsXFS {
		return growXFS(dir, size)
	}
	shape, err := readExt4(device)
	if err != nil {
		return err
	}
	if !shape.canGrow(size) {
		return nil
	}
	blocks := uint64(size) / shape.blockSize
	err = ioctl(dir, ext4ResizeFS, unsafe.Pointer(&blocks))
	if errors.Is(err, unix.EPERM) {
		return errGrowNotPermitted
	}
	if err != nil {
		return fmt.Errorf("grow ext4 on %q: %w", path, err)
	}
	return nil
}

func deviceSize(device *loop) (int64, error) {
	file, err := os.Open(device.path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	return sizeOf(file)
}

func sizeOf(device *os.File) (int64, error) {
	size, err := device.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("read the size of %q: %w", device.Name(), err)
	}
	return size, nil
}

// ext4Shape is the part of a superblock that determines the size of the filesystem.
type ext4Shape struct {
	blocks, blockSize, perGroup uint64
	// first is the block in which the first group begins.
	first uint64
	// tail is the most blocks that mkfs and the kernel leave unused at the end, because a last group that small
	// would hold little but its own description.
	tail uint64
}

func readExt4(device *loop) (ext4Shape, error) {
	file, err := os.Open(device.path)
	if err != nil {
		return ext4Shape{}, err
	}
	defer file.Close()
	super, err := readSuperblock(file, extSuper)
	if err != nil {
		return ext4Shape{}, err
	}
	shape, err := parseExt4(super)
	if err != nil {
		return ext4Shape{}, fmt.Errorf("read superblock of %q: %w", device.path, err)
	}
	return shape, nil
}

func parseExt4(super []byte) (ext4Shape, error) {
	le := binary.LittleEndian
	logSize := le.Uint32(super[extLogBlockSize:])
	if !isSuperblock(super) || logSize > 6 {
		return ext4Shape{}, errors.New("not an ext4 superblock")
	}
	s := ext4Shape{
		blocks:    uint64(le.Uint32(super[0x4:])),
		blockSize: 1024 << logSize,
		perGroup:  uint64(le.Uint32(super[extBlocksPerGroup:])),
		first:     uint64(le.Uint32(super[extFirstDataBlock:])),
	}
	descriptor := uint64(32)
	if le.Uint32(super[0x60:])&0x80 != 0 { // 64bit
		s.blocks |= uint64(le.Uint32(super[0x150:])) << 32
		descriptor = max(uint64(le.Uint16(super[0xFE:])), 32)
	}
	if s.perGroup == 0 {
		return ext4Shape{}, errors.New("ext4 superblock without groups")
	}
	inodeTable := uint64(le.Uint32(super[0x28:])) * uint64(le.Uint16(super[0x58:])) / s.blockSize
	groups := s.blocks/s.perGroup + 1
	descriptors := groups*descriptor/s.blockSize + 1
	reserved := uint64(le.Uint16(super[0xCE:]))
	s.tail = inodeTable + descriptors + reserved + 3 + 50
	return s, nil
}

// canGrow reports whether the filesystem can use more of a device of that many bytes.
func (s ext4Shape) canGrow(size int64) bool {
	blocks := uint64(size) / s.blockSize
	if blocks <= s.blocks {
		return false
	}
	return s.blocks%s.perGroup > 1 || blocks-s.blocks > s.tail
}

// xfsGeometry is the kernel's struct xfs_fsop_geom_v1, as far as it is used.
type xfsGeometry struct {
	blockSize, rtExtSize, agBlocks, agCount, logBlocks, sectSize, inodeSize, imaxpct uint32
	dataBlocks                                                                       uint64
	_                                                                                [9]uint64
}

// xfsGrowth is the kernel's struct xfs_growfs_data.
type xfsGrowth struct {
	blocks  uint64
	imaxpct uint32
	_       uint32
}

func growXFS(dir *os.File, size int64) error {
	var shape xfsGeometry
	if err := ioctl(dir, xfsGeometryV1, unsafe.Pointer(&shape)); err != nil {
		return fmt.Errorf("read the geometry of xfs on %q: %w", dir.Name(), err)
	}
	blocks := uint64(size) / uint64(max(shape.blockSize, 1))
	if blocks <= shape.dataBlocks {
		return nil
	}
	growth := xfsGrowth{blocks: blocks, imaxpct: shape.imaxpct}
	if err := ioctl(dir, xfsGrowData, unsafe.Pointer(&growth)); err != nil {
		return fmt.Errorf("grow xfs on %q: %w", dir.Name(), err)
	}
	return nil
}

func ioctl(file *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// growUnmounted expands an unmounted ext4 to the size of its device, if this process may not expand it while it is
// mounted. That is slower, because it must be checked first.
func (d *Driver) growUnmounted(ctx context.Context, device *loop, fsType string) error {
	if fsType != fsExt4 || canGrowMounted() {
		return nil
	}
	size, err := deviceSize(device)
	if err != nil {
		return err
	}
	shape, err := readExt4(device)
	if err != nil || !shape.canGrow(size) {
		return err
	}
	resize, err := program("resize2fs", fsExt4)
	if err != nil {
		return err
	}
	err = d.runE2fsck(ctx, device, "-f", "-p")
	if errors.Is(err, errDeviceBusy) {
		return nil
	}
	if err != nil {
		return err
	}
	return runProgram(ctx, resize, device.path)
}

// canGrowMounted reports whether this process has CAP_SYS_RESOURCE.
func canGrowMounted() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// growDeferredError is the error of an expansion that must wait for the next staging.
func growDeferredError(id string) error {
	return status.Errorf(codes.FailedPrecondition,
		"volume %q: %v, which this driver lacks; the filesystem grows when the volume is next staged", id, errGrowNotPermitted)
}
