package server

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/go-logr/logr"
)

// atDebugLevel makes the libraries that carry streams log at debug level: they report every end of a stream as an
// error, and each stream ends. Errors before the streams are connected are returned to the caller.
func atDebugLevel(logger *slog.Logger, next http.HandlerFunc) http.HandlerFunc {
	debugLogger := logr.FromSlogHandler(debugHandler{logger.Handler()})
	return func(w http.ResponseWriter, r *http.Request) {
		next(w, r.WithContext(logr.NewContext(r.Context(), debugLogger)))
	}
}

// debugHandler is a slog.Handler that lowers every record to debug level.
type debugHandler struct{ slog.Handler }

var _ slog.Handler = debugHandler{}

// Enabled implements slog.Handler.
func (d debugHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	return d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (d debugHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (d debugHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return debugHandler{d.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (d debugHandler) WithGroup(name string) slog.Handler {
	return debugHandler{d.Handler.WithGroup(name)}
}
