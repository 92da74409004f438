package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/csidriver"
	"github.com/berth-dev/berth/internal/testlog"
	csiprovision "github.com/berth-dev/berth/provision/csi"
)

// lineChannel hands each thing written on.
type lineChannel chan<- string

// Write implements io.Writer.
func (l lineChannel) Write(data []byte) (int, error) {
	select {
	case l <- string(data):
	default: // nobody reads any more
	}
	return len(data), nil
}

var _ io.Writer = lineChannel(nil)

// TestThePartsOfADriverNameItOnce runs them with a driver and without an API server until they say that the driver is there.
func TestThePartsOfADriverNameItOnce(t *testing.T) {
	dir, err := os.MkdirTemp("", "csi") // short: a socket's path is
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	config := csidriver.Config{Endpoint: filepath.Join(dir, "csi.sock"), NodeID: "node", Root: filepath.Join(dir, "disks")}
	printed := make(chan string, 1000)
	parts := csiSidecars{driver: csiprovision.Config{Name: csidriver.Name, Socket: config.Endpoint}, attach: true, capacity: true, resize: true}
	start, err := parts.start(&rest.Config{Host: "127.0.0.1:1"}, testlog.New(t, slog.NewTextHandler(lineChannel(printed), nil)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- csidriver.Serve(ctx, csidriver.Deps{}, config) }()
	go func() { ended <- start(ctx) }()
	for line := range printed {
		if strings.Contains(line, "driver is there") {
			require.Equal(t, 1, strings.Count(line, "driver="+csidriver.Name), line)
			break
		}
	}
	cancel()
	for range 2 {
		require.NoError(t, <-ended)
	}
}
