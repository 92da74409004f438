package startonce_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/startonce"
)

func TestGuard(t *testing.T) {
	var g startonce.Guard
	require.False(t, g.Begun())
	require.NoError(t, g.Begin("it"))
	require.True(t, g.Begun())
	require.EqualError(t, g.Begin("it"), "start it: it was started before; create a new one")
}
