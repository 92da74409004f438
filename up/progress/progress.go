// Package progress shows on the terminal how the components of a cluster start and what happens to them.
package progress

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"k8s.io/utils/clock"
)

// Progress shows how the components of a cluster start: one line per component, with its state and duration. On a
// terminal the lines change in place; in a pipe every change is a new line. It is safe for concurrent use.
type Progress struct {
	clock clock.PassiveClock
	// width returns the terminal's width in columns; nil if the output is not a terminal.
	width func() int

	mu    sync.Mutex // guards all below
	out   io.Writer
	lines []*progressLine
	// drawn is the number of screen rows of the live block; 0 once the block is final.
	drawn int
}

type progressLine struct {
	name      string
	state     string
	detail    string
	startedAt time.Time
	took      time.Duration
}

// New returns a Progress that writes to out. On a terminal, whose lines can be redrawn, width returns its number
// of columns; otherwise width is nil.
func New(out io.Writer, width func() int, clock clock.PassiveClock) *Progress {
	return &Progress{out: out, width: width, clock: clock}
}

// Starting shows that a component is starting. A component that starts again gets a new line.
func (p *Progress) Starting(name string) { p.set(name, "starting", "") }

// Ready shows that a component is ready.
func (p *Progress) Ready(name, detail string) { p.set(name, "ready", detail) }

// Failed shows the error of a component.
func (p *Progress) Failed(name string, err error) { p.set(name, "failed", err.Error()) }

func (p *Progress) set(name, state, detail string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	line := p.find(name)
	if line == nil || (state == "starting" && line.state != "starting") {
		line = &progressLine{name: name, startedAt: now}
		p.lines = append(p.lines, line)
	}
	line.state, line.detail, line.took = state, detail, now.Sub(line.startedAt)
	if p.width != nil {
		p.draw()
		return
	}
	if state == "starting" {
		fmt.Fprintf(p.out, "%-26s starting\n", name)
		return
	}
	fmt.Fprintln(p.out, line.text())
}

func (p *Progress) find(name string) *progressLine {
	for i := len(p.lines) - 1; i >= 0; i-- {
		if p.lines[i].name == name {
			return p.lines[i]
		}
	}
	return nil
}

func (l *progressLine) text() string {
	text := fmt.Sprintf("%-26s %-8s %6.2f s", l.name, l.state, l.took.Seconds())
	if l.detail != "" {
		text += "  " + l.detail
	}
	return text
}

// draw redraws the block of lines. The caller holds mu.
func (p *Progress) draw() {
	var b strings.Builder
	if p.drawn > 0 {
		// Move to the block's first row and clear everything below: the previous text may be longer.
		fmt.Fprintf(&b, "\x1b[%dA\x1b[J", p.drawn)
	}
	p.drawn = 0
	for _, line := range p.lines {
		text := line.text()
		if line.state == "starting" {
			text = fmt.Sprintf("%-26s starting …", line.name)
		}
		fmt.Fprintf(&b, "\r%s\n", text)
		p.drawn += p.rows(text)
	}
	_, _ = io.WriteString(p.out, b.String()) // an error means that the terminal is gone
}

// rows returns the number of screen rows of a line: the terminal wraps longer lines.
func (p *Progress) rows(line string) int {
	width := p.width()
	if width <= 0 {
		return 1 // unknown width
	}
	return max(1, (utf8.RuneCountInString(line)+width-1)/width)
}

// Printf writes lines below the parts that are done, which keep their lines for good; the others go on below.
func (p *Progress) Printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done, open := p.split()
	if p.width != nil {
		// Open lines may be between finished ones, so redraw the whole block.
		if p.drawn > 0 {
			fmt.Fprintf(p.out, "\x1b[%dA\x1b[J", p.drawn)
		}
		p.lines, p.drawn = done, 0
		p.draw()
	}
	fmt.Fprintf(p.out, format+"\n", args...)
	p.lines, p.drawn = open, 0
	if p.width != nil {
		p.draw()
	}
}

func (p *Progress) split() (done, open []*progressLine) {
	for _, line := range p.lines {
		if line.state == "starting" {
			open = append(open, line)
		} else {
			done = append(done, line)
		}
	}
	return done, open
}
