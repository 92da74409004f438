package volumes

import (
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/rawgrpc"
)

// callMeter stands before a CSI driver's socket and adds up how long its calls take that make a volume usable.
type callMeter struct {
	socket string
	server *grpc.Server
	driver *grpc.ClientConn
	served chan error

	mu  sync.Mutex // guards sum
	sum time.Duration
}

// metered are the calls that count.
var metered = []string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume"}

func startMeter(socket, driver string) (*callMeter, error) {
	conn, err := grpc.NewClient("unix://"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("start meter: %w", err)
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start meter: %w", err), conn.Close())
	}
	m := &callMeter{socket: socket, driver: conn, served: make(chan error, 1)}
	m.server = grpc.NewServer(grpc.UnknownServiceHandler(m.handle), grpc.ForceServerCodec(rawgrpc.Codec{}))
	go func() { m.served <- m.server.Serve(listener) }()
	return m, nil
}

func (m *callMeter) stop() error {
	m.server.Stop()
	return errors.Join(<-m.served, m.driver.Close())
}

func (m *callMeter) reset() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sum = 0
}

func (m *callMeter) total() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.sum
}

func (m *callMeter) handle(_ any, stream grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(stream)
	if !ok {
		return status.Error(codes.Internal, "a call without a method")
	}
	var request, answer rawgrpc.Message
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	began := time.Now()
	err := m.driver.Invoke(stream.Context(), method, &request, &answer, grpc.ForceCodec(rawgrpc.Codec{}), grpc.WaitForReady(true))
	if slices.Contains(metered, path.Base(method)) {
		m.mu.Lock()
		m.sum += time.Since(began)
		m.mu.Unlock()
	}
	if err != nil {
		return err
	}
	return stream.SendMsg(&answer)
}
