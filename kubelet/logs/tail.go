package logs

import (
	"bytes"
	"context"
	"errors"
	"io"
)

const (
	// tailBlock is how much of a file is read at a time when it is searched backwards, in bytes.
	tailBlock = 16 << 10
	// headerSize is enough for the time, stream and tags of a record, in bytes.
	headerSize = 64
)

// tailStart returns the offset of the last n lines. A line that the container wrote counts once, however many records
// it was split into; an incomplete last line is not counted, and is read with the others.
func tailStart(ctx context.Context, file io.ReaderAt, size, n int64) (int64, error) {
	if n == 0 {
		return size, nil
	}
	var (
		block   = make([]byte, tailBlock)
		ends    int64       // complete lines seen from the end
		lineEnd = int64(-1) // after the newline of the record whose beginning is searched for
	)
	for right := size; right > 0; {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		left := max(right-tailBlock, 0)
		part := block[:right-left]
		if _, err := file.ReadAt(part, left); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for at := bytes.LastIndexByte(part, '\n'); at >= 0; at = bytes.LastIndexByte(part[:at], '\n') {
			begin := left + int64(at) + 1
			if lineEnd >= 0 {
				if whole, err := endsLine(file, begin, lineEnd); err != nil {
					return 0, err
				} else if whole {
					if ends++; ends > n {
						return lineEnd, nil
					}
				}
			}
			lineEnd = begin
		}
		right = left
	}
	if lineEnd >= 0 {
		if whole, err := endsLine(file, 0, lineEnd); err != nil {
			return 0, err
		} else if whole && ends == n {
			return lineEnd, nil
		}
	}
	return 0, nil
}

// endsLine reports whether the record between two offsets is the last one of a line.
func endsLine(file io.ReaderAt, begin, end int64) (bool, error) {
	header := make([]byte, min(headerSize, end-begin))
	if _, err := file.ReadAt(header, begin); err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	r, ok := parse(header)
	return !ok || !r.partial, nil
}
