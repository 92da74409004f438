package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"k8s.io/component-base/tracing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// DefaultTimeout bounds a call whose context has no deadline.
	DefaultTimeout = 2 * time.Minute
	// maxMessage is the size of the largest accepted response, in bytes: the lists of 1000 Pods with as many annotations as the API server
	// allows. A runtime has a limit of its own.
	maxMessage = 256 << 20
	// maxSocketPath is the length of the longest unix socket address that the kernel accepts, without the final NUL.
	maxSocketPath = 107
	// serveRetry is the first pause after a runtime that is connected has refused a call, and maxServeRetry the longest one.
	serveRetry, maxServeRetry = 50 * time.Millisecond, 2 * time.Second
	// notServed begins the error of a socket that does not serve CRI.
	notServed = "CRI is not served"
)

// Config are the values of a Client.
type Config struct {
	// Endpoint is the runtime's socket: an absolute path, optionally with the prefix "unix://".
	Endpoint string
	// Timeout bounds a call whose context has no deadline; DefaultTimeout if zero. Pulling an image, running a command
	// and stopping a container are bounded by the caller alone.
	Timeout time.Duration
}

// Deps are what a Client works with. All of them may be nil.
type Deps struct {
	// Observe, if set, is called after every unary call with its CRI method name, its duration and its error. It runs
	// in the goroutine of the call and must not block.
	Observe func(method string, took time.Duration, err error)
	// Clock measures the duration of calls, and the pauses between attempts.
	Clock clock.Clock
	// TracerProvider makes a span for each call, which the runtime's own spans belong to; nil makes none.
	TracerProvider trace.TracerProvider
}

// Client is a connection to a container runtime. It is safe for concurrent use. It connects at first use and reconnects
// on its own.
type Client struct {
	// RuntimeServiceClient and ImageServiceClient are the runtime's own methods.
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient

	conn    *grpc.ClientConn
	pid     *atomic.Int32
	timeout time.Duration
	clock   clock.Clock
}

// New returns a Client. It does not connect: a missing runtime shows in the first call, or in Watch.
func New(deps Deps, config Config) (*Client, error) {
	path := strings.TrimPrefix(config.Endpoint, "unix://")
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("container runtime endpoint %q: want an absolute socket path", config.Endpoint)
	}
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("container runtime endpoint %q: longer than the %d bytes of a unix socket's address",
			config.Endpoint, maxSocketPath)
	}
	if config.Timeout <= 0 {
		config.Timeout = DefaultTimeout
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	peer := &atomic.Int32{}
	retry := backoff.DefaultConfig
	retry.BaseDelay, retry.MaxDelay = 50*time.Millisecond, 2*time.Second
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			socket, err := (&net.Dialer{}).DialContext(ctx, "unix", address)
			if err == nil {
				peer.Store(peerPID(socket))
			}
			return socket, err
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 2 * time.Second}),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithUnaryInterceptor(unaryInterceptor(deps, config)),
		grpc.WithStreamInterceptor(streamInterceptor(config)),
	}
	if deps.TracerProvider != nil {
		options = append(options, grpc.WithStatsHandler(otelgrpc.NewClientHandler(
			otelgrpc.WithTracerProvider(deps.TracerProvider), otelgrpc.WithPropagators(tracing.Propagators()),
			otelgrpc.WithMessageEvents(otelgrpc.ReceivedEvents, otelgrpc.SentEvents))))
	}
	conn, err := grpc.NewClient("passthrough:///"+path, options...)
	if err != nil {
		return nil, fmt.Errorf("container runtime endpoint %q: %w", config.Endpoint, err)
	}
	return &Client{
		RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn),
		ImageServiceClient:   runtimeapi.NewImageServiceClient(conn),
		conn:                 conn,
		pid:                  peer,
		timeout:              config.Timeout,
		clock:                deps.Clock,
	}, nil
}

// PID returns the process id of the peer of the newest connection, 0 before the first one or if this process cannot see
// it.
func (c *Client) PID() int { return int(c.pid.Load()) }

// peerPID returns the process id of the peer of a unix socket, 0 if the kernel does not report it.
func peerPID(socket net.Conn) int32 {
	raw, ok := socket.(syscall.Conn)
	if !ok {
		return 0
	}
	control, err := raw.SyscallConn()
	if err != nil {
		return 0
	}
	pid := int32(0)
	err = control.Control(func(fd uintptr) {
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = peer.Pid
		}
	})
	if err != nil {
		return 0
	}
	return pid
}

// Close closes the connection. Calls in progress fail.
func (c *Client) Close() error { return c.conn.Close() }

// Watch calls changed with true when the connection to the runtime is established and it serves, and with false when it is
// lost, and once at the beginning with the current state. It blocks until ctx ends and calls changed from its own goroutine.
func (c *Client) Watch(ctx context.Context, changed func(connected bool)) error {
	var last, notified bool
	delay := serveRetry
	for {
		state := c.conn.GetState()
		if state == connectivity.Idle {
			c.conn.Connect()
		}
		if state == connectivity.Ready && !last && !c.serves(ctx) {
			if !wakeup.Sleep(ctx, c.clock, delay) {
				return nil
			}
			delay = min(2*delay, maxServeRetry)
			continue
		}
		delay = serveRetry
		if connected := state == connectivity.Ready; !notified || connected != last {
			last, notified = connected, true
			changed(connected)
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return nil
		}
	}
}

// serves reports whether the runtime handles calls. containerd accepts them, and refuses each, while it reads its own state after a restart.
func (c *Client) serves(ctx context.Context) bool {
	_, err := c.Status(ctx, &runtimeapi.StatusRequest{})
	return !IsUnavailable(err) || strings.Contains(err.Error(), notServed)
}

// unbounded are the calls whose duration the caller bounds.
var unbounded = map[string]bool{"PullImage": true, "ExecSync": true, "StopContainer": true}

// unaryInterceptor sets the deadline of calls and reports them to the observer.
func unaryInterceptor(deps Deps, config Config) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, full string, req, reply any, conn *grpc.ClientConn,
		invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		method := full[strings.LastIndexByte(full, '/')+1:]
		if _, ok := ctx.Deadline(); !ok && !unbounded[method] {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, config.Timeout)
			defer cancel()
		}
		start := deps.Clock.Now()
		err := config.annotateUnavailable(invoke(ctx, full, req, reply, conn, opts...))
		if deps.Observe != nil {
			deps.Observe(method, deps.Clock.Since(start), err)
		}
		return err
	}
}

// streamInterceptor annotates the errors of streaming calls.
func streamInterceptor(config Config) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, full string, open grpc.Streamer,
		opts ...grpc.CallOption,
	) (grpc.ClientStream, error) {
		stream, err := open(ctx, desc, conn, full, opts...)
		if err != nil {
			return nil, config.annotateUnavailable(err)
		}
		return readyStream{stream, config}, nil
	}
}

// readyStream is a stream whose errors are annotated.
type readyStream struct {
	grpc.ClientStream
	config Config
}

// RecvMsg implements grpc.ClientStream.
func (s readyStream) RecvMsg(message any) error {
	return s.config.annotateUnavailable(s.ClientStream.RecvMsg(message))
}

// annotateUnavailable converts the error of a socket that does not serve CRI at all to Unavailable, so that it differs
// from that of a runtime which lacks one method. Packages of containerd often have CRI disabled.
func (c Config) annotateUnavailable(err error) error {
	if code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "unknown service ") {
		return err
	}
	return status.Errorf(codes.Unavailable, notServed+" at %s (%s): if this is containerd, remove \"cri\" from "+
		"disabled_plugins in its configuration, or check its log for why the plugin was not loaded, and restart it",
		c.Endpoint, Message(err))
}

// IsNotFound reports whether the runtime does not know the sandbox, container or image of a call.
func IsNotFound(err error) bool { return code(err) == codes.NotFound }

// IsUnavailable reports whether a call failed because the runtime was unreachable.
func IsUnavailable(err error) bool { return code(err) == codes.Unavailable }

// IsUnimplemented reports whether the runtime does not have the method.
func IsUnimplemented(err error) bool { return code(err) == codes.Unimplemented }

// Message returns the text of an error without gRPC's prefix, as users see it in a Pod's status.
func Message(err error) string {
	if err == nil {
		return ""
	}
	var g grpcError
	if !errors.As(err, &g) {
		return err.Error()
	}
	return strings.Replace(err.Error(), g.Error(), g.GRPCStatus().Message(), 1)
}

// grpcError is an error of a gRPC call.
type grpcError interface {
	error
	GRPCStatus() *status.Status
}

func code(err error) codes.Code {
	var g grpcError
	if errors.As(err, &g) {
		return g.GRPCStatus().Code()
	}
	return codes.OK
}
