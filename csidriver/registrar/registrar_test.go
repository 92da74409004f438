package registrar_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-dev/berth/csidriver/registrar"
	"github.com/berth-dev/berth/internal/unixsock"
)

func TestTheKubeletIsAnswered(t *testing.T) {
	for name, below := range map[string]string{"near": "r", "deep": strings.Repeat("r", 120)} {
		t.Run(name, func(t *testing.T) { serveAndRegister(t, below) })
	}
}

func serveAndRegister(t *testing.T, below string) {
	dir, err := os.MkdirTemp("", "reg")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	config := registrar.Config{Registry: filepath.Join(dir, below), Driver: "csi.example.com", Endpoint: "/run/csi.sock"}
	require.NoError(t, os.MkdirAll(config.Registry, 0o755))
	require.NoError(t, os.WriteFile(config.Socket(), nil, 0o600), "left by a killed process")

	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- registrar.Serve(ctx, registrar.Deps{}, config) }()

	dial := func(ctx context.Context, _ string) (net.Conn, error) { return unixsock.Dial(ctx, config.Socket()) }
	conn, err := grpc.NewClient("passthrough:///registrar", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(dial))
	require.NoError(t, err)
	client := registration.NewRegistrationClient(conn)
	info, err := client.GetInfo(t.Context(), &registration.InfoRequest{}, grpc.WaitForReady(true))
	require.NoError(t, err)
	require.Equal(t, "csi.example.com", info.Name)
	require.Equal(t, registration.CSIPlugin, info.Type)
	require.Equal(t, "/run/csi.sock", info.Endpoint)
	require.Equal(t, []string{"1.0.0"}, info.SupportedVersions)
	_, err = client.NotifyRegistrationStatus(t.Context(), &registration.RegistrationStatus{PluginRegistered: true})
	require.NoError(t, err)
	require.NoError(t, conn.Close())

	cancel()
	require.NoError(t, <-served)
	require.NoFileExists(t, config.Socket(), "the kubelet sees by this that the driver is gone")
}
