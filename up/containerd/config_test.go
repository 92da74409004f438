package containerd_test

import (
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/berth-dev/berth/up/containerd"
)

var rewrite = flag.Bool("rewrite", false, "write testdata anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exampleConfig is a valid configuration below dir.
func exampleConfig(dir string) containerd.Config {
	return containerd.Config{
		BinDir: dir + "/bin", CNIBinDir: dir + "/bin/cni", Root: dir + "/data/containerd", RunDir: dir + "/r",
		CNIConfDir: dir + "/data/net.d", SandboxImage: "berth.local/pause:v1", Bridge: "berth0",
		PodCIDR: netip.MustParsePrefix("10.85.0.0/16"), Gateway: netip.MustParseAddr("10.85.0.1"),
		Machine: containerd.Machine{Snapshotter: "overlayfs", Firewall: "iptables", RestrictOOMScoreAdj: true},
	}
}

// shortDir is a new directory with a path short enough for sockets.
func shortDir(t testing.TB) string {
	dir, err := os.MkdirTemp("/tmp", "b")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// TestWrite compares all that is written with testdata; go test -rewrite writes that anew.
func TestWrite(t *testing.T) {
	dir := shortDir(t)
	c := exampleConfig(dir)
	for range 2 { // The second time replaces the first.
		require.NoError(t, c.Write())
	}
	for golden, file := range map[string]string{
		"containerd.toml": c.File(), "network.json": filepath.Join(c.CNIConfDir, "10-berth.conflist"),
	} {
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
		text := strings.ReplaceAll(string(got), dir, "/DIR") + "\n"
		golden = filepath.Join("testdata", golden)
		if *rewrite {
			require.NoError(t, os.WriteFile(golden, []byte(text), 0o644))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(string(want), text))
	}
	left, err := os.ReadDir(c.CNIConfDir)
	require.NoError(t, err)
	require.Len(t, left, 1, "containerd reads every file there is")
}

func TestWriteWithAddressFilter(t *testing.T) {
	c := exampleConfig(shortDir(t))
	c.AddressFilter = true
	require.NoError(t, c.Write())
	data, err := os.ReadFile(filepath.Join(c.CNIConfDir, "10-berth.conflist"))
	require.NoError(t, err)
	var network struct {
		Plugins []struct {
			Type, Bridge  string
			AddressFilter bool
			Capabilities  map[string]bool
		}
	}
	require.NoError(t, json.Unmarshal(data, &network))
	require.Len(t, network.Plugins, 1, "each plugin is a process more for each Pod")
	require.Equal(t, "berth", network.Plugins[0].Type)
	require.Equal(t, "berth0", network.Plugins[0].Bridge)
	require.True(t, network.Plugins[0].AddressFilter)
	require.True(t, network.Plugins[0].Capabilities["portMappings"])
}

// TestWriteWithStandardPlugins: the Pods of one runtime have the network of the plugins' own programs.
func TestWriteWithStandardPlugins(t *testing.T) {
	c := exampleConfig(shortDir(t))
	c.StandardPlugins = true
	require.NoError(t, c.Write())
	text, err := os.ReadFile(c.File())
	require.NoError(t, err)
	dir := filepath.Join(c.CNIConfDir, "standard")
	require.Equal(t, 1, strings.Count(string(text), `cni_conf_dir = "`+dir+`"`))
	data, err := os.ReadFile(filepath.Join(dir, "10-berth.conflist"))
	require.NoError(t, err)
	var network struct{ Plugins []struct{ Type string } }
	require.NoError(t, json.Unmarshal(data, &network))
	require.Len(t, network.Plugins, 2)
	require.Equal(t, "bridge", network.Plugins[0].Type)
	require.Equal(t, "portmap", network.Plugins[1].Type)
}

func TestWriteWithoutOverlay(t *testing.T) {
	c := exampleConfig(shortDir(t))
	c.Machine.Snapshotter = "native"
	require.NoError(t, c.Write())
	text, err := os.ReadFile(c.File())
	require.NoError(t, err)
	require.Contains(t, string(text), `"io.containerd.snapshotter.v1.overlayfs",`)
	require.NotContains(t, string(text), `"io.containerd.snapshotter.v1.native",`)
	require.Contains(t, string(text), `snapshotter = "native"`)
}

// TestTwoClustersShareNothing: every path and name of one cluster's network differs from the other's.
func TestTwoClustersShareNothing(t *testing.T) {
	one, two := exampleConfig(shortDir(t)), exampleConfig(shortDir(t))
	two.Bridge = "berth1"
	var seen [2]struct {
		Name    string
		Plugins []struct{ Bridge string }
	}
	for i, c := range []containerd.Config{one, two} {
		require.NoError(t, c.Write())
		data, err := os.ReadFile(filepath.Join(c.CNIConfDir, "10-berth.conflist"))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &seen[i]))
	}
	require.NotEqual(t, seen[0].Name, seen[1].Name)
	require.NotEqual(t, seen[0].Plugins[0].Bridge, seen[1].Plugins[0].Bridge)
	require.NotEqual(t, one.NetworkCache(), two.NetworkCache())
}

func TestWriteNamesTheFieldThatIsWrong(t *testing.T) {
	dir := shortDir(t)
	for name, tt := range map[string]struct {
		change func(*containerd.Config)
		err    string
	}{
		"relative":          {func(c *containerd.Config) { c.Root = "data" }, `field Root: "data"`},
		"no program dir":    {func(c *containerd.Config) { c.BinDir = "" }, "field BinDir"},
		"colon":             {func(c *containerd.Config) { c.BinDir = "/a:b" }, "field BinDir"},
		"line end":          {func(c *containerd.Config) { c.CNIConfDir = "/a\nb" }, "field CNIConfDir"},
		"long":              {func(c *containerd.Config) { c.RunDir = "/" + strings.Repeat("x", 40) }, "field RunDir"},
		"no image":          {func(c *containerd.Config) { c.SandboxImage = "" }, "field SandboxImage"},
		"long bridge":       {func(c *containerd.Config) { c.Bridge = "berth-0123456789" }, "field Bridge"},
		"no pod network":    {func(c *containerd.Config) { c.PodCIDR = netip.Prefix{} }, "field PodCIDR"},
		"IPv6":              {func(c *containerd.Config) { c.PodCIDR = netip.MustParsePrefix("fd00::/64") }, "field PodCIDR"},
		"host bits":         {func(c *containerd.Config) { c.PodCIDR = netip.MustParsePrefix("10.85.0.1/16") }, "field PodCIDR"},
		"gateway elsewhere": {func(c *containerd.Config) { c.Gateway = netip.MustParseAddr("10.86.0.1") }, "field Gateway"},
		"gateway is net":    {func(c *containerd.Config) { c.Gateway = netip.MustParseAddr("10.85.0.0") }, "field Gateway"},
		"masquerade":        {func(c *containerd.Config) { c.ClusterMasquerade, c.Machine.Firewall = true, "nftables" }, "field ClusterMasquerade"},
		"machine unknown":   {func(c *containerd.Config) { c.Machine = containerd.Machine{} }, "field Machine"},
	} {
		t.Run(name, func(t *testing.T) {
			c := exampleConfig(dir)
			tt.change(&c)
			require.ErrorContains(t, c.Write(), tt.err)
		})
	}
}

func TestCommand(t *testing.T) {
	c := exampleConfig("/d")
	argv, env := c.Command()
	require.Equal(t, []string{"/d/bin/containerd", "--config", "/d/r/containerd.toml"}, argv)
	require.Len(t, env, 1)
	require.True(t, strings.HasPrefix(env[0], "PATH=/d/bin:"), env[0])
}

func TestDetect(t *testing.T) {
	root := filepath.Join(t.TempDir(), "containerd")
	machine, err := containerd.Detect(root)
	require.NoError(t, err)
	require.Contains(t, []string{"overlayfs", "native"}, machine.Snapshotter)
	require.Contains(t, []string{"iptables", "nftables"}, machine.Firewall)
	left, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, left)
	require.Len(t, containerd.Machine{RestrictOOMScoreAdj: true, Snapshotter: "native"}.Warnings(), 3)
	require.Empty(t, containerd.Machine{Snapshotter: "overlayfs", AppArmor: true}.Warnings())
}
