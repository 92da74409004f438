package writelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
)

// The format of dm-log-writes, version 1; see Documentation/admin-guide/device-mapper/log-writes.rst of Linux.
const (
	magic   = 0x6a736677736872
	version = 1

	superSize = 8 + 8 + 8 + 4
	entrySize = 4 * 8

	flagFlush   = 1 << 0
	flagFUA     = 1 << 1
	flagDiscard = 1 << 2
)

// A Log is the record of a disk. It may be used by one goroutine.
type Log struct {
	file    *os.File
	entries []entry
}

// entry is one request of the machine to its disk.
type entry struct {
	position int64 // of its beginning in the log
	flags    uint64
	offset   int64 // in the disk, in bytes
	length   int64
	data     int64 // position in the log of what it writes
}

func (e entry) is(flag uint64) bool { return e.flags&flag != 0 }

// Open reads which requests the log has. Those that were being written when the machine ended are left out. The caller closes the log.
func Open(path string) (*Log, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	l := &Log{file: file}
	if err := l.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("read the writes to a disk from %s: %w", path, err), file.Close())
	}
	return l, nil
}

// Close closes the log's file.
func (l *Log) Close() error { return l.file.Close() }

// Moments are the positions at which the requests have just begun, in their order: as long as the log was then, [Replay.Advance] has the
// request and none after it.
func (l *Log) Moments() []int64 {
	moments := make([]int64, len(l.entries))
	for i, e := range l.entries {
		moments[i] = e.position + 1
	}
	return moments
}

func (l *Log) read() error {
	info, err := l.file.Stat()
	if err != nil {
		return err
	}
	var super [superSize]byte
	if _, err := l.file.ReadAt(super[:], 0); err != nil {
		return fmt.Errorf("super block: %w", err)
	}
	number := binary.LittleEndian.Uint64
	if got := number(super[:]); got != magic {
		return fmt.Errorf("it begins with %#x, not as a log of dm-log-writes", got)
	}
	if got := number(super[8:]); got != version {
		return fmt.Errorf("version %d: want %d", got, version)
	}
	sector := int64(binary.LittleEndian.Uint32(super[24:]))
	if sector < 512 || sector&(sector-1) != 0 {
		return fmt.Errorf("sectors of %d bytes", sector)
	}
	for position := sector; ; {
		var head [entrySize]byte
		if _, err := l.file.ReadAt(head[:], position); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("request at %d: %w", position, err)
		}
		at, count, flags := number(head[:]), number(head[8:]), number(head[16:])
		if count == 0 && flags == 0 { // the machine ended before this was written
			return nil
		}
		if max(at, count) >= math.MaxInt64/uint64(sector) || flags > flagFlush|flagFUA|flagDiscard {
			return fmt.Errorf("request at %d: %d sectors at %d with the flags %#x", position, count, at, flags)
		}
		e := entry{position: position, offset: int64(at) * sector, length: int64(count) * sector, flags: flags, data: position + sector}
		position = e.data
		if !e.is(flagDiscard) {
			position += e.length
		}
		if position > info.Size() {
			return nil
		}
		l.entries = append(l.entries, e)
	}
}
