package config_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/pki"
)

func valid() config.Config {
	return config.Config{
		DataDir: "/var/lib/berth", RunDir: "/run/berth/0123abcd", APIPort: 6443,
		BindAddresses: []string{"127.0.0.1", "10.88.0.1"}, ServiceCIDR: "10.96.0.0/16", PodCIDR: "10.88.0.0/16",
		NodeName: "node-1", NodeIP: "10.88.0.1", LogLevel: "warn", CertificateLifetime: pki.DefaultLife,
	}
}

func TestValidateNamesTheFlag(t *testing.T) {
	tests := []struct {
		name   string
		change func(*config.Config)
		want   []string // nil: valid
	}{
		{"as it is", func(*config.Config) {}, nil},
		{"no node address", func(c *config.Config) { c.NodeIP = "" }, nil},
		{"two families", func(c *config.Config) { c.PodCIDR, c.ServiceCIDR = "10.88.0.0/16,fd00::/56", "10.96.0.0/16,fd01::/112" }, nil},
		{"families that differ", func(c *config.Config) { c.PodCIDR = "10.88.0.0/16,fd00::/56" }, []string{"--pod-cidr", "the same families"}},
		{"families in another order", func(c *config.Config) {
			c.PodCIDR, c.ServiceCIDR = "fd00::/56,10.88.0.0/16", "10.96.0.0/16,fd01::/112"
		}, []string{"the same families in the same order"}},
		{"a family twice", func(c *config.Config) { c.PodCIDR = "10.88.0.0/16,10.89.0.0/16" }, []string{"--pod-cidr", "one of IPv4 and one of IPv6"}},
		{"IPv6", func(c *config.Config) { c.PodCIDR, c.ServiceCIDR = "fd00::/56", "fd01::/112" }, nil},
		{"relative data dir", func(c *config.Config) { c.DataDir = "data" }, []string{"--data-dir", "data", "absolute"}},
		{"no run dir", func(c *config.Config) { c.RunDir = "" }, []string{"--run-dir", "absolute"}},
		{"long run dir", func(c *config.Config) { c.RunDir = "/" + strings.Repeat("x", 100) },
			[]string{"--run-dir", "shorter"}},
		{"run dir with a comma", func(c *config.Config) { c.RunDir = "/run/a,b" }, []string{"--run-dir", "contain"}},
		{"port 0", func(c *config.Config) { c.APIPort = 0 }, []string{"--api-port 0"}},
		{"port too high", func(c *config.Config) { c.APIPort = 65536 }, []string{"--api-port 65536"}},
		{"no address", func(c *config.Config) { c.BindAddresses = nil }, []string{"--bind-address"}},
		{"host name", func(c *config.Config) { c.BindAddresses[1] = "localhost" }, []string{"--bind-address", "localhost"}},
		{"all addresses", func(c *config.Config) { c.BindAddresses[1] = "0.0.0.0" }, []string{"--bind-address", "each"}},
		{"twice", func(c *config.Config) { c.BindAddresses[1] = "127.0.0.1" }, []string{"--bind-address", "twice"}},
		{"advertise", func(c *config.Config) { c.AdvertiseAddress = "::" }, []string{"--advertise-address"}},
		{"host bits", func(c *config.Config) { c.PodCIDR = "10.88.0.1/16" }, []string{"--pod-cidr", "10.88.0.0/16"}},
		{"no range", func(c *config.Config) { c.ServiceCIDR = "10.96.0.0" }, []string{"--service-cidr", "range"}},
		{"service range too wide", func(c *config.Config) { c.ServiceCIDR = "11.0.0.0/8" }, []string{"--service-cidr"}},
		{"pod range too small", func(c *config.Config) { c.PodCIDR = "10.88.0.0/31" }, []string{"--pod-cidr"}},
		{"pod range too wide", func(c *config.Config) { c.PodCIDR = "12.0.0.0/7" }, []string{"--pod-cidr", "wide"}},
		{"overlap", func(c *config.Config) { c.ServiceCIDR = "10.88.128.0/20" }, []string{"overlaps", "--pod-cidr"}},
		{"node name", func(c *config.Config) { c.NodeName = "Node_1" }, []string{"--node-name", "Node_1"}},
		{"node address", func(c *config.Config) { c.NodeIP = "10.88.0" }, []string{"--node-ip"}},
		{"log level", func(c *config.Config) { c.LogLevel = "loud" }, []string{"--log-level", "loud"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := valid()
			tt.change(&c)
			err := c.Validate()
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			for _, part := range tt.want {
				require.ErrorContains(t, err, part)
			}
		})
	}
}

func TestDerivedValues(t *testing.T) {
	c := valid()
	require.Equal(t, "https://127.0.0.1:6443", c.ServerURL())
	require.Equal(t, "10.96.0.1", c.ServiceIP().String())
	require.Equal(t, "/run/berth/0123abcd/etcd/etcd.sock", c.EtcdSocket())
	require.Equal(t, "/var/lib/berth/kubeconfigs/node.kubeconfig", c.Kubeconfig("node"))

	require.Equal(t, "10.88.0.1", c.Advertise(), "the first bind address that is not loopback")
	c.AdvertiseAddress = "192.0.2.7"
	require.Equal(t, "192.0.2.7", c.Advertise())
	c.AdvertiseAddress = "127.0.0.1"
	require.Empty(t, c.Advertise(), "the API forbids loopback endpoints")

	c.BindAddresses = []string{"fd00::1"}
	require.Equal(t, "https://[fd00::1]:6443", c.ServerURL())
}

func TestNodeMaskSize(t *testing.T) {
	for cidr, want := range map[string]string{
		"10.88.0.0/16": "24", "10.88.0.0/24": "24", "10.88.0.0/26": "26", "fd00::/56": "64", "fd00::/80": "80",
	} {
		c := valid()
		c.PodCIDR = cidr
		require.Equal(t, []string{"--node-cidr-mask-size=" + want}, c.NodeMaskArgs(), cidr)
	}
	c := valid()
	c.PodCIDR = "10.88.0.0/16,fd00::/80"
	require.Equal(t, []string{"--node-cidr-mask-size-ipv4=24", "--node-cidr-mask-size-ipv6=80"}, c.NodeMaskArgs())
}
