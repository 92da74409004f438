package csidriver

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"strconv"
)

// The layout of ext4's superblock, as far as it is used: where it is on the device, what marks it, and the offsets of its fields. See
// "Super Block" in the kernel's documentation of ext4.
const (
	extSuper     = 1024
	extSuperSize = 1024
	extMagic     = 0xEF53

	extFirstDataBlock = 0x14
	extLogBlockSize   = 0x18
	extBlocksPerGroup = 0x20
	extMagicField     = 0x38
	extGroupNumber    = 0x5A
	extROCompat       = 0x64
	extUUID           = 0x68
	extChecksum       = 0x3FC

	extMetadataChecksums = 0x400 // in extROCompat
)

// readSuperblock reads the superblock at an offset of the device.
func readSuperblock(device *os.File, offset int64) ([]byte, error) {
	super := make([]byte, extSuperSize)
	if _, err := device.ReadAt(super, offset); err != nil {
		return nil, fmt.Errorf("read superblock of %q: %w", device.Name(), err)
	}
	return super, nil
}

func isSuperblock(super []byte) bool {
	return binary.LittleEndian.Uint16(super[extMagicField:]) == extMagic
}

// isTorn reports whether a superblock has not the checksum of its content.
func isTorn(super []byte) bool {
	le := binary.LittleEndian
	if le.Uint32(super[extROCompat:])&extMetadataChecksums == 0 {
		return false
	}
	// ext4 does not invert the result, Go does.
	return le.Uint32(super[extChecksum:]) != ^crc32.Checksum(super[:extChecksum], crc32.MakeTable(crc32.Castagnoli))
}

// backupSuperblock returns the arguments that let e2fsck use the superblock's first copy, and nothing unless the superblock is torn and the
// copy is whole and of the same filesystem. E2fsprogs writes a superblock in pieces: if the device refuses one of them once, checksum and
// content do not match, and no program opens the filesystem any more, although all else is as it was. Filesystems of one group have no copy.
func backupSuperblock(device *os.File) ([]string, error) {
	primary, err := readSuperblock(device, extSuper)
	if err != nil {
		return nil, err
	}
	shape, err := parseExt4(primary)
	if err != nil || !isTorn(primary) {
		return nil, nil // e2fsck says what is wrong with another one
	}
	size, err := sizeOf(device)
	if err != nil {
		return nil, err
	}
	block := shape.first + shape.perGroup
	if (block+1)*shape.blockSize > uint64(size) {
		return nil, nil
	}
	backup, err := readSuperblock(device, int64(block*shape.blockSize))
	if err != nil {
		return nil, err
	}
	if !isSuperblock(backup) || isTorn(backup) || binary.LittleEndian.Uint16(backup[extGroupNumber:]) != 1 ||
		!bytes.Equal(backup[extUUID:extUUID+16], primary[extUUID:extUUID+16]) {
		return nil, nil
	}
	return []string{"-b", strconv.FormatUint(block, 10), "-B", strconv.FormatUint(shape.blockSize, 10)}, nil
}
