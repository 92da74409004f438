// Package testlog is a logger for tests. It fails a test that logs two attributes of one name in a record: readers cannot
// distinguish them, and tools keep only one.
package testlog

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
)

// Test is the part of *testing.T that is needed.
type Test interface {
	Helper()
	Errorf(format string, args ...any)
	Cleanup(func())
}

// New returns a logger that passes records to next, and fails the test for records of any level with a name twice. Records
// after the test's end are not checked.
func New(t Test, next slog.Handler) *slog.Logger {
	h := &handler{next: next, test: t, testEnded: &atomic.Bool{}}
	t.Cleanup(func() { h.testEnded.Store(true) })
	return slog.New(h)
}

// handler implements slog.Handler. It is immutable: the With methods return new ones.
type handler struct {
	next      slog.Handler
	test      Test
	testEnded *atomic.Bool
	// group is the prefix of further attributes' names, names are those of the attributes that every record has.
	group string
	names []string
}

var _ slog.Handler = (*handler)(nil)

// Enabled implements slog.Handler: records that next drops are checked, too.
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
