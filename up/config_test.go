package up

import (
	"os"
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
		"IPv6":              {Config{ServiceCIDR: "fd00::/64"}, "an IPv4 network comes first"},
		"too small":         {Config{PodCIDR: "10.0.0.0/28"}, "too small"},
		"overlap":           {Config{PodCIDR: "10.0.0.0/16", ServiceCIDR: "10.0.128.0/24"}, "overlap"},
		"port out of range": {Config{APIPort: 70000}, "--api-port 70000"},
		"data in a file":    {Config{DataDir: "/proc/version"}, "--data-dir /proc/version: it is a file"},
		"below a file":      {Config{DataDir: "/proc/version/x"}, "--data-dir /proc/version/x: it is a file"},
		"no static Pods":    {Config{StaticPods: "/absent"}, "--pod-manifest-path: create the file"},
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

// TestADataDirectoryBehindALink is about all the names that one directory can have: they are one cluster, whatever of the
// directory is there yet.
func TestADataDirectoryBehindALink(t *testing.T) {
	root := t.TempDir()
	real, link, chain := filepath.Join(root, "disk", "real"), filepath.Join(root, "link"), filepath.Join(root, "chain")
	require.NoError(t, os.Symlink("disk/real", link))
	require.NoError(t, os.Symlink(link, chain))
	names := []string{link, chain, link + "/"}
	for _, there := range []bool{false, true} {
		if there {
			require.NoError(t, os.MkdirAll(real, 0o700))
		}
		for _, name := range names {
			l := layoutFor(t, Config{DataDir: name, NodeName: "n"})
			require.Equal(t, real, l.DataDir, "%s, there: %t", name, there)
			require.Equal(t, layoutFor(t, Config{DataDir: real, NodeName: "n"}).ID, l.ID)
		}
		below := layoutFor(t, Config{DataDir: filepath.Join(chain, "not", "yet"), NodeName: "n"})
		require.Equal(t, filepath.Join(real, "not", "yet"), below.DataDir)
	}
	t.Chdir(root)
	require.Equal(t, real, layoutFor(t, Config{DataDir: "link", NodeName: "n"}).DataDir)

	require.NoError(t, os.Symlink("circle", filepath.Join(root, "circle")))
	_, err := Config{DataDir: filepath.Join(root, "circle"), NodeName: "n"}.Complete()
	require.ErrorContains(t, err, "--data-dir")
}

func layoutFor(t *testing.T, config Config) Layout {
	t.Helper()
	config, err := config.Complete()
	require.NoError(t, err)
	layout, err := NewLayout(config)
	require.NoError(t, err)
	return layout
}
