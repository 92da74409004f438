package memory

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTuneGC(t *testing.T) {
	percent := debug.SetGCPercent(100)
	defer debug.SetGCPercent(percent)
	rate := runtime.MemProfileRate
	defer func() { runtime.MemProfileRate = rate }()

	t.Setenv("GOGC", "80")
	TuneGC(true)
	require.Equal(t, 100, debug.SetGCPercent(100), "who runs the program has said what he wants")
	require.Equal(t, rate, runtime.MemProfileRate)

	t.Setenv("GOGC", "")
	TuneGC(false)
	require.Equal(t, garbagePercent, debug.SetGCPercent(100))
	require.Zero(t, runtime.MemProfileRate)
}
