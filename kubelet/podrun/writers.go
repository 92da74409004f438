package podrun

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// LineWriter lets several writers share one, a write at a time.
func LineWriter(w io.Writer) io.Writer { return &shared{w: w} }

type shared struct {
	mu sync.Mutex // one write at a time
	w  io.Writer
}

// Write implements io.Writer.
func (s *shared) Write(data []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(data)
}

// longestLine is how much of a line is kept before it is passed on unfinished, in bytes.
const longestLine = 64 << 10

// prefixed puts a prefix before each line and passes only whole lines on, so that those of several containers do
// not mix. Without a prefix it passes all on as it comes.
type prefixed struct {
	w      io.Writer
	prefix []byte
	rest   []byte
}

func newPrefixed(w io.Writer, prefix string) *prefixed {
	return &prefixed{w: w, prefix: []byte(prefix)}
}

// Write implements io.Writer.
func (p *prefixed) Write(data []byte) (int, error) {
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
		if whole || len(p.rest) >= longestLine {
			if err := p.pass(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

// flush passes on what no newline ended.
func (p *prefixed) flush() error {
	if len(p.rest) == 0 {
		return nil
	}
	return p.pass()
}

func (p *prefixed) pass() error {
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
