package testbed

import (
	"context"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// ignoredDone is a context that must not be waited for.
type ignoredDone struct {
	context.Context
	t *testing.T
}

func (u ignoredDone) Done() <-chan struct{} {
	u.t.Error("the process would end with its context")
	return u.Context.Done()
}

// TestProcessOutlivesItsContext: a benchmark that is interrupted needs the runtime to remove its Pods.
func TestProcessOutlivesItsContext(t *testing.T) {
	const script = `trap 'echo asked to end; exit' TERM; trap 'echo alive' USR1; echo up; while :; do sleep 1000 & wait $!; done`
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lines := make(chan string, 3)
	p, err := start(ignoredDone{ctx, t}, t.TempDir(), "script", []string{"/bin/sh", "-c", script}, nil, func(line string) { lines <- line })
	require.NoError(t, err)
	require.Equal(t, "up", <-lines)
	cancel()
	require.NoError(t, syscall.Kill(p.PID, syscall.SIGUSR1))
	require.Equal(t, "alive", <-lines)
	go func() { _ = syscall.Kill(-p.PID, syscall.SIGTERM) }() // the sleeps too: they hold the output open
	require.NoError(t, p.Stop())
	require.Equal(t, "asked to end", <-lines)
}
