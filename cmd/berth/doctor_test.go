package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/up"
)

func TestLeftoversAreWorded(t *testing.T) {
	d := leftover(&up.Remains{ID: "0123abcd", Shims: []int{100}, Cgroups: []string{"/sys/fs/cgroup/berth-0123abcd"}, Bridge: true})
	require.Equal(t, broken, d.Severity)
	require.Equal(t, "1 containers' shims, 1 cgroups, bridge berth0123abcd", d.Found)
	require.NotEmpty(t, d.ask, "--fix asks first")
}
