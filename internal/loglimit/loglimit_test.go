package loglimit_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/loglimit"
)

//go:noinline
func flood(logger *slog.Logger, n int) {
	for i := range n {
		logger.With("i", i).Info("flood")
	}
}

func TestFloodOfOneLineHidesNoOther(t *testing.T) {
	var out bytes.Buffer
	clock := testclock.NewFakePassiveClock(time.Now())
	logger := slog.New(loglimit.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}), clock))
	flood(logger, 100_000)
	require.Equal(t, 500, strings.Count(out.String(), "msg=flood"))
	logger.Warn("other")
	require.Contains(t, out.String(), "msg=other")

	out.Reset()
	clock.SetTime(clock.Now().Add(3 * time.Second))
	flood(logger, 10)
	require.Equal(t, 3, strings.Count(out.String(), "msg=flood"))
	require.Contains(t, out.String(), "dropped=99500")

	out.Reset()
	for range 1000 {
		logger.WithGroup("g").Debug("requested")
	}
	require.Equal(t, 1000, strings.Count(out.String(), "msg=requested"))
}
