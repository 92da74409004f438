// Package loglimit limits how many messages one line of code logs, so that what anyone can cause, as often as the network
// permits, fills no disk and hides nothing else.
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// burst is how many messages a line of code may log at once, and rate how many a second in the long run.
	burst = 500
	rate  = 1.0
)

// Handler passes messages on to another slog.Handler. Of the messages of one line of code at the level Info and above, those
// beyond the limit are dropped; the next one that is passed on has their number as the attribute "dropped". Messages below
// Info are not limited: they were requested. It is safe for concurrent use.
type Handler struct {
	slog.Handler
	limits *limits
}

var _ slog.Handler = (*Handler)(nil)

// limits are the limits of all lines of code.
type limits struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	lines map[uintptr]*line
}

// line is what one line of code has logged.
type line struct {
	left    float64
	at      time.Time
	dropped int
}

// New returns a Handler that passes messages on to next.
func New(next slog.Handler, clock clock.PassiveClock) *Handler {
	return &Handler{Handler: next, limits: &limits{clock: clock, lines: map[uintptr]*line{}}}
}

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, record slog.Record) error {
	if record.Level < slog.LevelInfo || record.PC == 0 {
		return h.Handler.Handle(ctx, record)
	}
	dropped, ok := h.limits.take(record.PC)
	if !ok {
		return nil
	}
	if dropped > 0 {
		record = record.Clone()
		record.AddAttrs(slog.Int("dropped", dropped))
	}
	return h.Handler.Handle(ctx, record)
}

// take counts a message. It returns how many were dropped since the last one, and whether this one is passed on.
func (l *limits) take(pc uintptr) (dropped int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	one := l.lines[pc]
	if one == nil {
		one = &line{left: burst, at: now}
		l.lines[pc] = one
	}
	one.left = min(burst, one.left+now.Sub(one.at).Seconds()*rate)
	one.at = now
	if one.left < 1 {
		one.dropped++
		return 0, false
	}
	one.left--
	dropped, one.dropped = one.dropped, 0
	return dropped, true
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{Handler: h.Handler.WithAttrs(attrs), limits: h.limits}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{Handler: h.Handler.WithGroup(name), limits: h.limits}
}
