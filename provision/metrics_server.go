package provision

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// listenRetryPeriod is the pause after the metrics port could not be listened on: it may be held by a
	// process that is about to end, and nothing tells when.
	listenRetryPeriod = 5 * time.Second
	// headerTimeout bounds how long a client of the metrics page may take to send its request.
	headerTimeout = 10 * time.Second
)

// serveMetrics serves the metrics page until the context ends. Failing to listen is logged and tried again.
func (ctrl *ProvisionController) serveMetrics(ctx context.Context) {
	s := &ctrl.settings
	if s.metricsPort <= 0 {
		return
	}
	address := net.JoinHostPort(s.metricsAddress, strconv.Itoa(int(s.metricsPort)))
	for ctx.Err() == nil {
		if err := ctrl.serveMetricsOnce(ctx, address); err != nil {
			s.logger.Error("metrics page is not served, will retry", "address", address, "error", err)
			timer := s.clock.NewTimer(listenRetryPeriod)
			select {
			case <-ctx.Done():
			case <-timer.C():
			}
			timer.Stop()
		}
	}
}

func (ctrl *ProvisionController) serveMetricsOnce(ctx context.Context, address string) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %q for metrics: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.Handle(ctrl.settings.metricsPath, promhttp.HandlerFor(ctrl.metrics.registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		err = server.Close()
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return err
}
