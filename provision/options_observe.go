package provision

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/timeline"
)

// Logger sets the logger. Nil, the default, discards.
func Logger(logger *slog.Logger) Option {
	return set(func(s *settings) error {
		if logger == nil {
			logger = discardLogger()
		}
		s.logger = logger
		return nil
	})
}

// EventRecorder sets the recorder of events. Defaults to one that writes to the API server.
func EventRecorder(recorder record.EventRecorder) Option {
	return set(func(s *settings) error {
		if recorder == nil {
			return errors.New("option EventRecorder: nil")
		}
		s.recorder = recorder
		return nil
	})
}

// Timeline sets the recorder of the stages of claims and volumes. Nil records nothing.
func Timeline(recorder *timeline.Recorder) Option {
	return set(func(s *settings) error {
		s.timeline = recorder
		return nil
	})
}

// Registerer registers the controller's metrics with the registerer, too; they always have a registry of their own.
func Registerer(registerer prometheus.Registerer) Option {
	return set(func(s *settings) error {
		s.registerer = registerer
		return nil
	})
}

// MetricsPort is the port of the metrics server. Default: 0, no server.
func MetricsPort(metricsPort int32) Option {
	return set(func(s *settings) error {
		if err := atLeast("MetricsPort", metricsPort, 0); err != nil {
			return err
		}
		if metricsPort > math.MaxUint16 {
			return fmt.Errorf("option MetricsPort: %d is greater than %d", metricsPort, math.MaxUint16)
		}
		s.metricsPort = metricsPort
		return nil
	})
}

// MetricsAddress is the IP address that the metrics server listens on. Default: 0.0.0.0, all.
func MetricsAddress(metricsAddress string) Option {
	return set(func(s *settings) error {
		s.metricsAddress = metricsAddress
		return nil
	})
}

// MetricsPath is the path of the metrics page. Default: /metrics.
func MetricsPath(metricsPath string) Option {
	return set(func(s *settings) error {
		if !strings.HasPrefix(metricsPath, "/") {
			return fmt.Errorf("option MetricsPath: %q does not start with a slash", metricsPath)
		}
		if strings.ContainsAny(metricsPath, " \t{}") { // a pattern of http.ServeMux, not a path
			return fmt.Errorf("option MetricsPath: %q has a space or a brace", metricsPath)
		}
		s.metricsPath = metricsPath
		return nil
	})
}
