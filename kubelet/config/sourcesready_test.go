package config_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/config"
)

func TestSourcesAreReadyTogether(t *testing.T) {
	calls := 0
	ready := config.NewSourcesReady(func() { calls++ }, config.SourceAPI, config.SourceFile)
	ready.MarkReady(config.SourceFile)
	ready.MarkReady(config.SourceFile)
	ready.MarkReady("another")
	require.Zero(t, calls)
	ready.MarkReady(config.SourceAPI)
	ready.MarkReady(config.SourceAPI)
	require.Equal(t, 1, calls)

	config.NewSourcesReady(func() { calls++ }).MarkReady(config.SourceAPI)
	require.Equal(t, 1, calls, "there is no source to wait for")
}
