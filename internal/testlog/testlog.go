// Package testlog is a log for tests, which fails a test that writes a line with two attributes of one name: who reads it
// could not tell which of them is meant, and tools keep one.
package testlog

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
)

// Test is what of a *testing.T is needed.
type Test interface {
	Helper()
	Errorf(format string, args ...any)
	Cleanup(func())
}

// New makes a logger that hands lines of all levels to next, and fails the test for those with a name twice. What is logged
// after the test's end is not looked at.
func New(t Test, next slog.Handler) *slog.Logger {
	h := &handler{next: next, test: t, testEnded: &atomic.Bool{}}
	t.Cleanup(func() { h.testEnded.Store(true) })
	return slog.New(h)
}

// handler implements slog.Handler. It is never changed: With makes another.
type handler struct {
	next      slog.Handler
	test      Test
	testEnded *atomic.Bool
	// group begins the names of attributes to come, names has those that each line has.
	group string
	names []string
}

var _ slog.Handler = (*handler)(nil)

// Enabled implements slog.Handler: a line that next does not want is looked at, too.
func (*handler) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	names := slices.Clone(h.names)
	record.Attrs(func(a slog.Attr) bool {
		names = appendNames(names, h.group, a)
		return true
	})
	slices.Sort(names)
	for i := range names {
		if i > 0 && names[i] == names[i-1] && !h.testEnded.Load() {
			h.test.Errorf("the line %q has the attribute %q twice", record.Message, names[i])
		}
	}
	if !h.next.Enabled(ctx, record.Level) {
		return nil
	}
	if err := h.next.Handle(ctx, record); err != nil {
		return fmt.Errorf("log %q: %w", record.Message, err)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *h
	with.next, with.names = h.next.WithAttrs(attrs), slices.Clone(h.names)
	for _, a := range attrs {
		with.names = appendNames(with.names, h.group, a)
	}
	return &with
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	with := *h
	with.next = h.next.WithGroup(name)
	if name != "" {
		with.group = h.group + name + "."
	}
	return &with
}

// appendNames adds the name of an attribute, or those in it if it is a group.
func appendNames(names []string, group string, a slog.Attr) []string {
	value := a.Value.Resolve()
	if value.Kind() != slog.KindGroup {
		return append(names, group+a.Key)
	}
	if a.Key != "" {
		group += a.Key + "."
	}
	for _, inner := range value.Group() {
		names = appendNames(names, group, inner)
	}
	return names
}
