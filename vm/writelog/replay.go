package writelog

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// chunk is the size of the parts of a request that a disk keeps or loses.
const chunk = 4096

// A Replay follows a log. It may be used by one goroutine.
type Replay struct {
	log *Log
	// durable is the disk with all requests before next, of which the last one is a flush.
	durable *os.File
	next    int
	// seen is the first request that began at or behind the moment.
	seen int
}

// Replay begins at the first request, with a disk of zeros: durable is an empty file, which has to be as large as the disk.
// It stays the caller's.
func (l *Log) Replay(durable *os.File) *Replay { return &Replay{log: l, durable: durable} }

// Advance goes on to the moment at which the log was as long as the position says, which is none before that of the last call.
// The file gets everything that was durable then.
func (r *Replay) Advance(position int64) error {
	for ; r.seen < len(r.log.entries) && r.log.entries[r.seen].position < position; r.seen++ {
		if !r.log.entries[r.seen].is(flagFlush) {
			continue
		}
		for ; r.next <= r.seen; r.next++ {
			if err := r.apply(r.durable, r.log.entries[r.next], func() bool { return true }); err != nil {
				return err
			}
		}
	}
	return nil
}

// Cut applies to the disk, which is a copy of the durable one, those parts of the requests since then that the disk has kept:
// keep is asked for each of at most 4 KiB, but for requests with FUA, which are durable.
func (r *Replay) Cut(disk *os.File, keep func() bool) error {
	for _, e := range r.log.entries[r.next:r.seen] {
		keepPart := keep
		if e.is(flagFUA) {
			keepPart = func() bool { return true }
		}
		if err := r.apply(disk, e, keepPart); err != nil {
			return err
		}
	}
	return nil
}

// Pending is the number of requests of which a power cut at this moment may lose parts.
func (r *Replay) Pending() (count int) {
	for _, e := range r.log.entries[r.next:r.seen] {
		if !e.is(flagFUA) {
			count++
		}
	}
	return count
}

func (r *Replay) apply(disk *os.File, e entry, keep func() bool) error {
	if e.is(flagDiscard) {
		if e.length == 0 || !keep() {
			return nil
		}
		err := unix.Fallocate(int(disk.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, e.offset, e.length)
		if err != nil {
			return fmt.Errorf("discard %d bytes at %d of %s: %w", e.length, e.offset, disk.Name(), err)
		}
		return nil
	}
	var buffer [chunk]byte
	for done := int64(0); done < e.length; {
		part := buffer[:min(chunk, e.length-done)]
		if keep() {
			if _, err := r.log.file.ReadAt(part, e.data+done); err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("read the data of the request at %d: %w", e.position, err)
			}
			if _, err := disk.WriteAt(part, e.offset+done); err != nil {
				return err
			}
		}
		done += int64(len(part))
	}
	return nil
}
