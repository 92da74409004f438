package footprint

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThrift(t *testing.T) {
	percent := debug.SetGCPercent(100)
	defer debug.SetGCPercent(percent)
	rate := runtime.MemProfileRate
	defer func() { runtime.MemProfileRate = rate }()

	t.Setenv("GOGC", "80")
	Thrift(true)
	require.Equal(t, 100, debug.SetGCPercent(100), "who runs the program has said what he wants")
	require.Equal(t, rate, runtime.MemProfileRate)

	t.Setenv("GOGC", "")
	Thrift(false)
	require.Equal(t, garbagePercent, debug.SetGCPercent(100))
	require.Zero(t, runtime.MemProfileRate)
}
