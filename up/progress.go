package up

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Progress tells a person how the parts of a cluster come up: one line a part, with its state and the time it
// took. On a terminal the lines change in place; in a pipe every change is a line of its own.
// It is safe for concurrent use.
type Progress struct {
	clock clock.PassiveClock

	mu    sync.Mutex // guards all below
	out   io.Writer
	live  bool
	parts []*part
	// drawn is how many lines of the live block are on the screen; 0 once the block is final.
	drawn int
}

type part struct {
	name   string
	state  string
	detail string
	began  time.Time
	took   time.Duration
}

// NewProgress writes to out; live says that out is a terminal whose lines can be drawn again.
func NewProgress(out io.Writer, live bool, clk clock.PassiveClock) *Progress {
	return &Progress{out: out, live: live, clock: clk}
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
		line = &part{name: name, began: now}
		p.parts = append(p.parts, line)
	}
	line.state, line.detail, line.took = state, detail, now.Sub(line.began)
	if p.live {
		p.draw()
		return
	}
	if state == "starting" {
		fmt.Fprintf(p.out, "%-26s starting\n", name)
		return
	}
	fmt.Fprintln(p.out, line.text())
}

func (p *Progress) find(name string) *part {
	for i := len(p.parts) - 1; i >= 0; i-- {
		if p.parts[i].name == name {
			return p.parts[i]
		}
	}
	return nil
}

func (l *part) text() string {
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
		fmt.Fprintf(&b, "\x1b[%dA", p.drawn)
	}
	for _, line := range p.parts {
		text := line.text()
		if line.state == "starting" {
			text = fmt.Sprintf("%-26s starting …", line.name)
		}
		// Clear to the end of the line: the text before may have been longer.
		fmt.Fprintf(&b, "\r%s\x1b[K\n", text)
	}
	p.drawn = len(p.parts)
	_, _ = io.WriteString(p.out, b.String()) // a terminal that is gone has nobody to tell
}

// Say writes lines below the parts that are done, which keep their lines for good; the others go on below.
func (p *Progress) Say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done, open := p.split()
	if p.live {
		// What is open may stand between what is done, so the whole block is written anew.
		if p.drawn > 0 {
			fmt.Fprintf(p.out, "\x1b[%dA\x1b[J", p.drawn)
		}
		p.parts, p.drawn = done, 0
		p.draw()
	}
	fmt.Fprintf(p.out, format+"\n", args...)
	p.parts, p.drawn = open, 0
	if p.live {
		p.draw()
	}
}

func (p *Progress) split() (done, open []*part) {
	for _, line := range p.parts {
		if line.state == "starting" {
			open = append(open, line)
		} else {
			done = append(done, line)
		}
	}
	return done, open
}
