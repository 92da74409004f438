package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/up"
)

func TestLeftoversAreWorded(t *testing.T) {
	d := leftoverDiagnosis(&up.Leftover{ID: "0123abcd", Shims: []int{100}, Cgroups: []string{"/sys/fs/cgroup/berth-0123abcd"}, Bridge: true})
	require.Equal(t, severityError, d.Severity)
	require.Equal(t, "1 container shims, 1 cgroups, bridge berth0123abcd", d.Found)
	require.NotEmpty(t, d.confirmation, "--fix asks first")

	d = leftoverDiagnosis(&up.Leftover{ID: "0123abcd", DataDir: "/data", Mounts: []string{"/data/kubelet/a"}, Disks: []string{"/data/disks/b"},
		Rules: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}})
	require.Equal(t, "1 mounts, 1 loop devices, 1 firewall rules of the cluster in /data", d.Found)
}
