package daemon

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/loglimit"
)

// NewLogger returns the logger that the configuration describes, and has the libraries of Kubernetes use it.
func NewLogger(out io.Writer, config *logsapi.LoggingConfiguration) (*slog.Logger, error) {
	lowest := config.Verbosity
	for _, item := range config.VModule {
		lowest = max(lowest, item.Verbosity)
	}
	options := &slog.HandlerOptions{Level: slog.LevelInfo - slog.Level(lowest)}
	var handler slog.Handler = slog.NewTextHandler(out, options)
	if config.Format == "json" {
		handler = slog.NewJSONHandler(out, options)
	}
	if len(config.VModule) > 0 {
		handler = &moduleHandler{Handler: handler, verbosity: int(config.Verbosity), modules: config.VModule}
	}
	logger := slog.New(loglimit.New(handler, clock.RealClock{}))
	klog.SetSlogLogger(logger)
	// The libraries ask klog whether a verbosity is enabled.
	var level klog.Level
	return logger, level.Set(strconv.FormatUint(uint64(lowest), 10))
}

// moduleHandler passes on the messages of a verbosity, and those of some source files of other verbosities.
type moduleHandler struct {
	slog.Handler
	verbosity int
	modules   logsapi.VModuleConfiguration
}

var _ slog.Handler = (*moduleHandler)(nil)

// Handle implements slog.Handler.
func (h *moduleHandler) Handle(ctx context.Context, record slog.Record) error {
	if int(slog.LevelInfo-record.Level) > h.limit(record.PC) {
		return nil
	}
	return h.Handler.Handle(ctx, record)
}

// limit returns the verbosity of a source file: that of the first pattern that its name without directory and suffix matches.
func (h *moduleHandler) limit(pc uintptr) int {
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	name := strings.TrimSuffix(filepath.Base(frame.File), ".go")
	for _, item := range h.modules {
		if ok, err := filepath.Match(item.FilePattern, name); err == nil && ok {
			return int(item.Verbosity)
		}
	}
	return h.verbosity
}

// WithAttrs implements slog.Handler.
func (h *moduleHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &moduleHandler{h.Handler.WithAttrs(attrs), h.verbosity, h.modules}
}

// WithGroup implements slog.Handler.
func (h *moduleHandler) WithGroup(name string) slog.Handler {
	return &moduleHandler{h.Handler.WithGroup(name), h.verbosity, h.modules}
}
