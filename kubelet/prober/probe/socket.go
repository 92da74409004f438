package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

func probeTCP(ctx context.Context, host string, port int, timeout time.Duration) (Result, string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := dialer().DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return Failure, err.Error(), nil
	}
	_ = conn.Close()
	return Success, "", nil
}

func probeGRPC(ctx context.Context, host string, port int, service string, timeout time.Duration) (
	Result, string, error,
) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithUserAgent("kube-probe/"+apiVersion),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer().DialContext(ctx, "tcp", addr)
		}))
	if err != nil {
		return Failure, "", fmt.Errorf("prepare grpc probe of %q: %w", addr, err)
	}
	defer func() { _ = conn.Close() }()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: service})
	switch {
	case err == nil && resp.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING:
		return Success, "service healthy", nil
	case err == nil:
		return Failure, fmt.Sprintf("service unhealthy (responded with %q)", resp.GetStatus().String()), nil
	case status.Code(err) == codes.Unimplemented:
		return Failure, "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): " +
			status.Convert(err).Message(), nil
	case status.Code(err) == codes.DeadlineExceeded || errors.Is(ctx.Err(), context.DeadlineExceeded):
		return Failure, fmt.Sprintf("timeout: health rpc did not complete within %v", timeout), nil
	}
	return Failure, fmt.Sprintf("error: health rpc probe failed: %v", err), nil
}
