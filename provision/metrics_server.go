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

	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// listenRetryPeriod is the pause after listening on the metrics port failed: a process that is about to end may still
	// have it, and there is no event for its end.
	listenRetryPeriod = 5 * time.Second
	// headerTimeout bounds the time in which a client sends the header of its request.
	headerTimeout = 10 * time.Second
)

// serveMetrics serves the metrics until the context ends. If it cannot listen, it logs that and tries again.
func (ctrl *ProvisionController) serveMetrics(ctx context.Context) {
	s := &ctrl.settings
	if s.metricsPort <= 0 {
		return
	}
	address := net.JoinHostPort(s.metricsAddress, strconv.Itoa(int(s.metricsPort)))
	for ctx.Err() == nil {
		if err := ctrl.serveMetricsOnce(ctx, address); err != nil {
			s.logger.Error("failed to serve metrics; retrying", "address", address, "error", err)
			wakeup.Sleep(ctx, s.clock, listenRetryPeriod)
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
	server := &http.Server{Handler: contain.Handler("provision.serve", mux), ReadHeaderTimeout: headerTimeout}
	ended := make(chan error, 1)
	go func() {
		ended <- contain.Do("provision.serveMetricsOnce", "", func() error { return server.Serve(listener) })
	}()
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
