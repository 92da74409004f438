package testlog_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/testlog"
)

// failing is a test that remembers its failures.
type failing struct{ said []string }

func (*failing) Helper()                          {}
func (*failing) Cleanup(func())                   {}
func (f *failing) Errorf(format string, a ...any) { f.said = append(f.said, fmt.Sprintf(format, a...)) }

func TestANameTwiceFailsTheTest(t *testing.T) {
	for text, test := range map[string]struct {
		log   func(*slog.Logger)
		fails bool
	}{
		"none":          {func(l *slog.Logger) { l.With("a", 1).Info("line", "b", 2) }, false},
		"in the line":   {func(l *slog.Logger) { l.Info("line", "a", 1, "a", 2) }, true},
		"of the logger": {func(l *slog.Logger) { l.With("a", 1).Info("line", "a", 2) }, true},
		"of loggers":    {func(l *slog.Logger) { l.With("a", 1).With("a", 1).Info("line") }, true},
		"not wanted":    {func(l *slog.Logger) { l.Debug("line", "a", 1, "a", 2) }, true},
		"another group": {func(l *slog.Logger) { l.With("a", 1).WithGroup("g").Info("line", "a", 2) }, false},
		"a group":       {func(l *slog.Logger) { l.WithGroup("g").Info("line", slog.Group("h", "a", 1, "a", 2)) }, true},
		"branches": {func(l *slog.Logger) {
			one := l.With("a", 1)
			one.With("b", 1).Info("line", "c", 1)
			one.With("c", 1).Info("line", "b", 1)
		}, false},
	} {
		var f failing
		test.log(testlog.New(&f, slog.DiscardHandler))
		require.Equal(t, test.fails, len(f.said) > 0, "%s: %v", text, f.said)
	}
}

func TestLinesAreHandedOn(t *testing.T) {
	var out bytes.Buffer
	testlog.New(t, slog.NewTextHandler(&out, nil)).With("a", 1).WithGroup("g").Info("line", "b", 2)
	require.Contains(t, out.String(), "msg=line a=1 g.b=2")
}
