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

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
)

const (
	// DefaultTimeout bounds a call whose context has no deadline of its own.
	DefaultTimeout = 2 * time.Minute
	// maxMessage is the largest answer accepted: lists of a full node run to megabytes.
	maxMessage = 16 << 20
	// maxSocketPath is what the kernel takes in a unix socket address, without the final NUL.
	maxSocketPath = 107
)

// Config says which runtime to talk to.
type Config struct {
	// Endpoint is the runtime's socket: an absolute path, or the same with the prefix "unix://".
	Endpoint string
	// Timeout bounds a call whose context has no deadline; DefaultTimeout if zero. Pulling an image,
	// running a command and waiting for a container to stop are bounded by their caller alone.
	Timeout time.Duration
}

// Deps are what a Client works with. All of them may be nil.
type Deps struct {
	// Observe, if set, is told of every finished unary call: its CRI method name, how long it took and how
	// it ended. It is called from the goroutine of the call and must not block.
	Observe func(method string, took time.Duration, err error)
	// Clock measures calls for Observe; it may be nil.
	Clock clock.PassiveClock
}

// Client is a connection to a container runtime. It is safe for concurrent use, connects when it is first used,
// and reconnects on its own.
type Client struct {
	// RuntimeServiceClient and ImageServiceClient are the runtime's own methods.
	runtimeapi.RuntimeServiceClient
	runtimeapi.ImageServiceClient

	conn *grpc.ClientConn
	pid  *atomic.Int32
}

// New makes a Client. It does not connect: an absent runtime shows in the first call, or in Watch.
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
	conn, err := grpc.NewClient("passthrough:///"+path,
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
	)
	if err != nil {
		return nil, fmt.Errorf("container runtime endpoint %q: %w", config.Endpoint, err)
	}
	return &Client{
		RuntimeServiceClient: runtimeapi.NewRuntimeServiceClient(conn),
		ImageServiceClient:   runtimeapi.NewImageServiceClient(conn),
		conn:                 conn,
		pid:                  peer,
	}, nil
}

// PID is the process that the newest connection is to, 0 before there was one, and where this process does not see it.
func (c *Client) PID() int { return int(c.pid.Load()) }

// peerPID is the process at the other end of a unix socket, 0 if the kernel does not say.
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

// Close ends the connection. Calls under way fail.
func (c *Client) Close() error { return c.conn.Close() }

// Watch calls changed with true each time the connection to the runtime is made and with false each time it is
// lost, beginning with what is so now. It blocks until ctx ends; changed is called from its goroutine.
func (c *Client) Watch(ctx context.Context, changed func(connected bool)) error {
	var last, notified bool
	for {
		state := c.conn.GetState()
		if state == connectivity.Idle {
			c.conn.Connect()
		}
		if connected := state == connectivity.Ready; !notified || connected != last {
			last, notified = connected, true
			changed(connected)
		}
		if !c.conn.WaitForStateChange(ctx, state) {
			return nil
		}
	}
}

// unbounded are the calls whose length is the caller's business.
var unbounded = map[string]bool{"PullImage": true, "ExecSync": true, "StopContainer": true}

// unaryInterceptor gives calls their deadline and shows them to the observer.
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

// streamInterceptor says the same of calls that answer with a stream.
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

// readyStream is a stream whose errors are told by served.
type readyStream struct {
	grpc.ClientStream
	config Config
}

// RecvMsg implements grpc.ClientStream.
func (s readyStream) RecvMsg(message any) error {
	return s.config.annotateUnavailable(s.ClientStream.RecvMsg(message))
}

// annotateUnavailable tells a socket behind which nobody serves CRI from a runtime that lacks a method: the one is a runtime that is
// away, the other one that is old. Packages of containerd often come with CRI switched off.
func (c Config) annotateUnavailable(err error) error {
	if code(err) != codes.Unimplemented || !strings.Contains(err.Error(), "unknown service ") {
		return err
	}
	return status.Errorf(codes.Unavailable, "nobody serves CRI at %s (%s): if that is containerd, take \"cri\" out of "+
		"disabled_plugins in its configuration, or see in its log why the plugin was not loaded, and restart it",
		c.Endpoint, Message(err))
}

// IsNotFound reports whether the runtime does not know the sandbox, container or image that a call named.
func IsNotFound(err error) bool { return code(err) == codes.NotFound }

// IsUnavailable reports whether a call failed because the runtime could not be reached.
func IsUnavailable(err error) bool { return code(err) == codes.Unavailable }

// IsUnimplemented reports whether the runtime does not have the method called.
func IsUnimplemented(err error) bool { return code(err) == codes.Unimplemented }

// Message is the text of an error with gRPC's wrapping taken off a runtime's words, as users see it in a Pod's
// status.
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

// grpcError is an error that came over gRPC.
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
