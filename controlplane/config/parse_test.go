package config_test

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/controlplane/config"
)

func TestParse(t *testing.T) {
	c, err := config.Parse([]string{
		"--data-dir=/data", "--run-dir=/run/b", "--api-port=7443", "--bind-address=127.0.0.1", "--bind-address=10.9.0.1",
		"--advertise-address=10.9.0.1", "--service-cidr=10.8.0.0/16", "--pod-cidr=10.9.0.0/24", "--node-name=n1",
		"--node-ip=10.9.0.1", "--log-level=info", "--unsafe-no-fsync", "--certificate-lifetime=1h",
		"--runtime-config=api/beta=true", "--feature-gates=A=true,B=false",
		"--api-only",
	}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, &config.Config{
		DataDir: "/data", RunDir: "/run/b", APIPort: 7443, BindAddresses: []string{"127.0.0.1", "10.9.0.1"},
		AdvertiseAddress: "10.9.0.1", ServiceCIDR: "10.8.0.0/16", PodCIDR: "10.9.0.0/24", NodeName: "n1",
		NodeIP: "10.9.0.1", LogLevel: "info", UnsafeNoFsync: true, CertificateLifetime: time.Hour,
		RuntimeConfig: "api/beta=true", FeatureGates: "A=true,B=false", APIOnly: true,
	}, c)
}

func TestParseDefaultsAreValidAndOnLoopbackOnly(t *testing.T) {
	c, err := config.Parse(nil, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []string{"127.0.0.1"}, c.BindAddresses)
	require.False(t, c.UnsafeNoFsync)
}

func TestParseRefuses(t *testing.T) {
	for arg, want := range map[string]string{
		"--api-port=http": "--api-port", "--unknown": "--unknown", "start": `"start"`, "--log-level=9": "--log-level",
		"--certificate-lifetime=1s": "--certificate-lifetime", "--certificate-lifetime=20000h": "--certificate-lifetime",
	} {
		_, err := config.Parse([]string{arg}, io.Discard)
		require.ErrorContains(t, err, want)
	}
	var help bytes.Buffer
	_, err := config.Parse([]string{"--help"}, &help)
	require.ErrorIs(t, err, pflag.ErrHelp)
	require.Contains(t, help.String(), "--bind-address")
}
