package server

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/go-logr/logr"
)

// quietly lets what carries streams log at debug level only: it calls every end of a stream an error, and an end is
// how all streams end. What goes wrong before the streams are joined is answered to the caller.
func quietly(log *slog.Logger, next http.HandlerFunc) http.HandlerFunc {
	quiet := logr.FromSlogHandler(demoted{log.Handler()})
	return func(w http.ResponseWriter, r *http.Request) {
		next(w, r.WithContext(logr.NewContext(r.Context(), quiet)))
	}
}

// demoted is a slog.Handler to which everything is of debug level.
type demoted struct{ slog.Handler }

var _ slog.Handler = demoted{}

// Enabled implements slog.Handler.
func (d demoted) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (d demoted) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (d demoted) WithAttrs(attrs []slog.Attr) slog.Handler {
	return demoted{d.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (d demoted) WithGroup(name string) slog.Handler { return demoted{d.Handler.WithGroup(name)} }
