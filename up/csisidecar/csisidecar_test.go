package csisidecar_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/internal/testlog"
	csiprovision "github.com/berth-dev/berth/provision/csi"
	"github.com/berth-dev/berth/up/csisidecar"
)

// lineChannel is a writer that sends each write, or drops it if the channel is full.
type lineChannel chan<- string

var _ io.Writer = lineChannel(nil)

// Write implements io.Writer.
func (l lineChannel) Write(data []byte) (int, error) {
	select {
	case l <- string(data):
	default: // the test has ended
	}
	return len(data), nil
}

// unreachable returns clients of an API server that does not exist.
func unreachable(t *testing.T) csisidecar.Deps {
	t.Helper()
	config := &rest.Config{Host: "127.0.0.1:1"}
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	objects, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	return csisidecar.Deps{Client: client, Dynamic: objects}
}

// TestTheControllersOfADriverNameItOnce runs them with a driver and without an API server until they log that the driver
// serves.
func TestTheControllersOfADriverNameItOnce(t *testing.T) {
	dir, err := os.MkdirTemp("", "csi") // short, because of the limit on sockets' paths
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	config := csidriver.Config{Endpoint: filepath.Join(dir, "csi.sock"), NodeID: "node", Root: filepath.Join(dir, "disks")}
	logged := make(chan string, 1000)
	deps := unreachable(t)
	deps.Logger = testlog.New(t, slog.NewTextHandler(lineChannel(logged), nil))
	sidecar, err := csisidecar.New(deps, csisidecar.Config{
		Driver:    csiprovision.Config{Name: csidriver.Name, Socket: "unix://" + config.Endpoint},
		Provision: true, Attach: true, Capacity: true, Resize: true, LeaderElection: true,
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- csidriver.Serve(ctx, csidriver.Deps{}, config) }()
	go func() { ended <- sidecar.Start(ctx) }()
	for line := range logged {
		if strings.Contains(line, "driver="+csidriver.Name) {
			require.Equal(t, 1, strings.Count(line, "driver="+csidriver.Name), line)
			break
		}
	}
	cancel()
	for range 2 {
		require.NoError(t, <-ended)
	}
}

func TestErrorsNameTheField(t *testing.T) {
	driver := csiprovision.Config{Name: csidriver.Name, Socket: "/csi.sock"}
	for field, config := range map[string]csisidecar.Config{
		"Config.Driver: Name and Socket are required": {Provision: true},
		"Config.Provision or Config.Attach":           {Driver: driver},
		"require Config.Provision":                    {Driver: driver, Attach: true, Capacity: true},
	} {
		_, err := csisidecar.New(unreachable(t), config)
		require.ErrorContains(t, err, "csisidecar: ")
		require.ErrorContains(t, err, field)
	}
	_, err := csisidecar.New(csisidecar.Deps{}, csisidecar.Config{Driver: driver, Attach: true})
	require.EqualError(t, err, "csisidecar: Deps.Client is required")
}
