package main

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestArguments(t *testing.T) {
	for name, tt := range map[string]struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		"version":      {args: []string{"-v"}, stdout: "pause dev\n"},
		"long version": {args: []string{"--version"}, stdout: "pause dev\n"},
		"unknown":      {args: []string{"sleep"}, code: 2, stderr: "pause: unknown argument \"sleep\": it takes none but -v\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			require.Equal(t, tt.code, run(tt.args, &stdout, &stderr))
			require.Equal(t, tt.stdout, stdout.String())
			require.Equal(t, tt.stderr, stderr.String())
		})
	}
}

func TestEndsAtTermAfterReaping(t *testing.T) {
	for _, end := range []os.Signal{syscall.SIGTERM, syscall.SIGINT} {
		signals := make(chan os.Signal, 3)
		signals <- syscall.SIGCHLD
		signals <- syscall.SIGCHLD
		signals <- end
		reaped := 0
		pause(signals, func() { reaped++ })
		require.Equal(t, 2, reaped)
		require.Empty(t, signals)
	}
}

func TestReapCollectsTheDead(t *testing.T) {
	child := exec.Command("true")
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	_, err = out.Read(make([]byte, 1))
	require.Error(t, err, "the pipe ends with the child")
	// WNOWAIT sees the dead child and leaves it to reap.
	require.NoError(t, waitDead(child.Process.Pid))

	reap()

	_, err = child.Process.Wait()
	require.ErrorIs(t, err, syscall.ECHILD, "it has been reaped already")
}
