// Package registrar registers a CSI driver with the kubelet: it serves the registration socket that the kubelet watches
// for in its plugins_registry directory (k8s.io/kubelet/pkg/apis/pluginregistration/v1).
package registrar

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/unixsock"
)

// Deps are the dependencies of Serve.
type Deps struct {
	// Logger defaults to one that discards.
	Logger *slog.Logger
}

// Config describes the driver to register.
type Config struct {
	// Registry is the kubelet's plugins_registry directory; its path may be longer than a socket's address allows. It is
	// created if it is missing.
	Registry string
	// Driver is the driver's name.
	Driver string
	// Endpoint is the absolute path of the driver's own socket.
	Endpoint string
	// Versions are the CSI versions that the driver supports; "1.0.0" if empty.
	Versions []string
}

// Socket is the path of the registration socket.
func (c Config) Socket() string { return filepath.Join(c.Registry, c.Driver+"-reg.sock") }

// Serve serves the registration socket until ctx is done, and then removes it, by which the kubelet unregisters the
// driver. It replaces a socket that a killed process left.
func Serve(ctx context.Context, deps Deps, config Config) error {
	for _, field := range []struct{ name, value string }{
		{"Registry", config.Registry}, {"Driver", config.Driver}, {"Endpoint", config.Endpoint},
	} {
		if field.value == "" {
			return fmt.Errorf("registrar: Config.%s is required", field.name)
		}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if len(config.Versions) == 0 {
		config.Versions = []string{"1.0.0"}
	}
	path := config.Socket()
	if err := os.MkdirAll(config.Registry, 0o755); err != nil {
		return fmt.Errorf("register driver %q: %w", config.Driver, err)
	}
	// The listener removes the file when it is closed.
	listener, err := unixsock.Replace(ctx, path)
	if err != nil {
		return fmt.Errorf("register driver %q: %w", config.Driver, err)
	}
	server := grpc.NewServer(contain.ServerOptions("registrar.call")...)
	registration.RegisterRegistrationServer(server, &registrationServer{config: config, logger: deps.Logger})
	if err := contain.Serve(ctx, "registrar.serve", server, listener); err != nil {
		return fmt.Errorf("register driver %q: serve %q: %w", config.Driver, path, err)
	}
	return nil
}

type registrationServer struct {
	registration.UnsafeRegistrationServer
	config Config
	logger *slog.Logger
}

var _ registration.RegistrationServer = (*registrationServer)(nil)

// GetInfo implements registration.RegistrationServer.
func (s *registrationServer) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type: registration.CSIPlugin, Name: s.config.Driver, Endpoint: s.config.Endpoint, SupportedVersions: s.config.Versions,
	}, nil
}

// NotifyRegistrationStatus implements registration.RegistrationServer.
func (s *registrationServer) NotifyRegistrationStatus(
	_ context.Context, status *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		s.logger.Info("the kubelet registered the driver", "driver", s.config.Driver)
	} else {
		s.logger.Error("the kubelet rejected the driver", "driver", s.config.Driver, "error", status.Error)
	}
	return &registration.RegistrationStatusResponse{}, nil
}
