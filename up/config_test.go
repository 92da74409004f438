package up

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigErrorsNameTheFlag(t *testing.T) {
	for name, test := range map[string]struct {
		config Config
		wants  string
	}{
		"node name":         {Config{NodeName: "Bad_Name"}, `--node-name "Bad_Name"`},
		"not a network":     {Config{PodCIDR: "10.0.0.0"}, "--pod-cidr"},
		"host bits":         {Config{PodCIDR: "10.0.0.1/16"}, "did you mean 10.0.0.0/16"},
		"IPv6":              {Config{ServiceCIDR: "fd00::/64"}, "only IPv4"},
		"too small":         {Config{PodCIDR: "10.0.0.0/28"}, "too small"},
		"overlap":           {Config{PodCIDR: "10.0.0.0/16", ServiceCIDR: "10.0.128.0/24"}, "overlap"},
		"port out of range": {Config{APIPort: 70000}, "--api-port 70000"},
		"data in a file":    {Config{DataDir: "/proc/version"}, "--data-dir /proc/version: it is a file"},
		"below a file":      {Config{DataDir: "/proc/version/x"}, "--data-dir /proc/version/x: it is a file"},
		"no static Pods":    {Config{StaticPods: "/absent"}, "--pod-manifest-path: make the file"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.config.NodeName == "" {
				test.config.NodeName = "node"
			}
			_, err := test.config.Complete()
			require.ErrorContains(t, err, test.wants)
		})
	}
}

func TestLayoutsOfTwoClustersShareNothing(t *testing.T) {
	one := layoutFor(t, Config{DataDir: "/a/one", NodeName: "n", PodCIDR: "10.1.0.0/16"})
	two := layoutFor(t, Config{DataDir: "/a/two", NodeName: "n", PodCIDR: "10.2.0.0/16"})
	require.Equal(t, "10.1.0.1", one.Gateway.String())
	require.NotEqual(t, one.RunDir, two.RunDir)
	require.NotEqual(t, one.Bridge(), two.Bridge())
	require.NotEqual(t, one.CgroupRoot(), two.CgroupRoot())
	require.LessOrEqual(t, len(one.Bridge()), 15, "a network interface's name")
	require.Less(t, len(filepath.Join(one.RunDir, "containerd.sock.ttrpc")), 108, "a unix socket's path")
}

func layoutFor(t *testing.T, config Config) Layout {
	t.Helper()
	config, err := config.Complete()
	require.NoError(t, err)
	layout, err := NewLayout(config)
	require.NoError(t, err)
	return layout
}
