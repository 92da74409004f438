package logs

import (
	"bytes"
	"errors"
	"io"
	"time"
)

// timeFormat is the format of times before lines, with a fixed width.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

// record is one line of a log file: TIME STREAM TAGS CONTENT. A line that the container wrote is one record, or several
// of which all but the last are marked partial.
type record struct {
	time    time.Time
	stream  string // stdout or stderr
	partial bool
	content []byte // with the newline that ends the container's line, unless partial
}

// parse parses one line of the file, with or without its newline. It reports whether the line has the right form.
func parse(line []byte) (record, bool) {
	body, ended := bytes.CutSuffix(line, []byte{'\n'})
	timestamp, rest, ok := bytes.Cut(body, []byte{' '})
	if !ok {
		return record{}, false
	}
	at, err := time.Parse(time.RFC3339Nano, string(timestamp))
	if err != nil {
		return record{}, false
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok || string(stream) != "stdout" && string(stream) != "stderr" {
		return record{}, false
	}
	tags, content, _ := bytes.Cut(rest, []byte{' '}) // an empty line may lack the last blank
	first, _, _ := bytes.Cut(tags, []byte{':'})
	r := record{time: at, stream: string(stream), partial: string(first) == "P", content: content}
	if ended && !r.partial {
		r.content = append(content[:len(content):len(content)], '\n')
	}
	return r, true
}

var errLimit = errors.New("byte limit reached")

// recordWriter writes records to the two streams.
type recordWriter struct {
	opts           Options
	stdout, stderr io.Writer // nil streams are omitted
	left           int64     // bytes that may still be written; -1 means no limit
	midLine        map[string]bool
	// current gets the rest of the record whose beginning was written last, without a newline if cut is set.
	current io.Writer
	cut     bool
}

func newRecordWriter(opts Options, stdout, stderr io.Writer) *recordWriter {
	left := int64(-1)
	if opts.LimitBytes != nil {
		left = *opts.LimitBytes
	}
	return &recordWriter{opts: opts, stdout: stdout, stderr: stderr, left: left, midLine: map[string]bool{}}
}

// write writes one line of the file. A line that is not a record, for instance one truncated by a full disk, is written
// unchanged.
func (s *recordWriter) write(line []byte) error {
	r, ok := parse(line)
	if !ok {
		s.current, s.cut = s.stdout, false
		return s.put(s.stdout, line)
	}
	if r.time.Before(s.opts.Since) {
		s.current = nil
		return nil
	}
	w := s.stdout
	if r.stream == "stderr" {
		w = s.stderr
	}
	s.current, s.cut = w, r.partial
	if s.opts.Timestamps && !s.midLine[r.stream] {
		r.content = append([]byte(r.time.Format(timeFormat)+" "), r.content...)
	}
	s.midLine[r.stream] = r.partial
	return s.put(w, r.content)
}

// writeRest writes more of the line that was written last, which had no newline.
func (s *recordWriter) writeRest(piece []byte) error {
	if s.cut {
		piece = bytes.TrimSuffix(piece, []byte{'\n'})
	}
	return s.put(s.current, piece)
}

func (s *recordWriter) put(w io.Writer, content []byte) error {
	if w == nil {
		return nil
	}
	last := s.left >= 0 && int64(len(content)) >= s.left
	if last {
		content = content[:s.left]
	}
	n, err := w.Write(content)
	if s.left >= 0 {
		s.left -= int64(n)
	}
	if err == nil && last {
		return errLimit
	}
	return err
}
