package up

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"k8s.io/utils/clock"
)

// Progress tells a person how the parts of a cluster come up: one line a part, with its state and the time it
// took. On a terminal the lines change in place; in a pipe every change is a line of its own.
// It is safe for concurrent use.
type Progress struct {
	clock clock.PassiveClock
	// width is the terminal's, in columns; nil if the output is none.
	width func() int

	mu    sync.Mutex // guards all below
	out   io.Writer
	lines []*progressLine
	// drawn is how many rows of the screen the live block takes; 0 once the block is final.
	drawn int
}

type progressLine struct {
	name      string
	state     string
	detail    string
	startedAt time.Time
	took      time.Duration
}

// NewProgress writes to out. If that is a terminal, whose lines can be drawn again, width tells how many columns it has;
// else width is nil.
func NewProgress(out io.Writer, width func() int, clock clock.PassiveClock) *Progress {
	return &Progress{out: out, width: width, clock: clock}
}

// Starting begins the line of a part. A part that starts again gets a fresh line.
func (p *Progress) Starting(name string) { p.set(name, "starting", "") }

// Ready ends the line of a part with success.
func (p *Progress) Ready(name, detail string) { p.set(name, "ready", detail) }

// Failed ends the line of a part with its error.
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

// draw writes the block of parts over the one drawn before. The caller holds mu.
func (p *Progress) draw() {
	var b strings.Builder
	if p.drawn > 0 {
		// To the block's first row, and clear all below: the text before may have been longer.
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
	_, _ = io.WriteString(p.out, b.String()) // a terminal that is gone has nobody to tell
}

// rows is how many rows of the screen a line takes: the terminal wraps what is wider than it.
func (p *Progress) rows(line string) int {
	width := p.width()
	if width <= 0 {
		return 1 // it does not say how wide it is
	}
	return max(1, (utf8.RuneCountInString(line)+width-1)/width)
}

// Printf writes lines below the parts that are done, which keep their lines for good; the others go on below.
func (p *Progress) Printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done, open := p.split()
	if p.width != nil {
		// What is open may stand between what is done, so the whole block is written anew.
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
