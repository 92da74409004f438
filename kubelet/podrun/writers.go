package podrun

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// LineWriter returns a writer that several goroutines can share, one write at a time.
func LineWriter(w io.Writer) io.Writer { return &lockedWriter{w: w} }

type lockedWriter struct {
	mu sync.Mutex // one write at a time
	w  io.Writer
}

// Write implements io.Writer.
func (s *lockedWriter) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(data)
}

// maxLine is the length at which an unfinished line is written, in bytes.
const maxLine = 64 << 10

// prefixWriter writes a prefix before each line, and only whole lines, so that those of several containers do not mix.
// Without a prefix it writes all data at once.
type prefixWriter struct {
	w      io.Writer
	prefix []byte
	rest   []byte
}

func newPrefixWriter(w io.Writer, prefix string) *prefixWriter {
	return &prefixWriter{w: w, prefix: []byte(prefix)}
}

// Write implements io.Writer.
func (p *prefixWriter) Write(data []byte) (int, error) {
	if len(p.prefix) == 0 {
		return p.w.Write(data)
	}
	n := len(data)
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n') + 1
		whole := end > 0
		if !whole {
			end = len(data)
		}
		p.rest = append(p.rest, data[:end]...)
		data = data[end:]
		if whole || len(p.rest) >= maxLine {
			if err := p.writeLine(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

// flush writes an unfinished line.
func (p *prefixWriter) flush() error {
	if len(p.rest) == 0 {
		return nil
	}
	return p.writeLine()
}

func (p *prefixWriter) writeLine() error {
	line := append(append([]byte{}, p.prefix...), p.rest...)
	if line[len(line)-1] != '\n' {
		line = append(line, '\n')
	}
	p.rest = p.rest[:0]
	if _, err := p.w.Write(line); err != nil {
		return fmt.Errorf("write log: %w", err)
	}
	return nil
}
