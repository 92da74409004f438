//go:build integration

package integration

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/berth-dev/berth/internal/rawgrpc"
)

// criProxy is a proxy between a kubelet and its runtime that causes faults: it returns errors, before or after calls were
// executed, delays calls, and drops, duplicates, delays and so reorders events. It can cut all connections.
type criProxy struct {
	socket  string
	backend *grpc.ClientConn
	server  *grpc.Server

	mu     sync.Mutex // guards all below
	random *rand.Rand
	faults faults
	done   map[string]int // the number of each fault
	conns  map[net.Conn]struct{}
}

// faults are the shares, from 0 to 1, of calls and of events with a fault.
type faults struct {
	refuse, forget, slow    float64 // calls: not executed; executed, but with an error; delayed
	drop, double, late, all float64 // events; all drops every one if it is 1
}

// slowest is the longest delay of a call or an event.
const slowest = 400 * time.Millisecond

// newCRIProxy serves on a socket of its own and forwards to that of the runtime.
func newCRIProxy(t testing.TB, runtime string, random *rand.Rand) *criProxy {
	t.Helper()
	dir := runDir(t, "berth-proxy")
	backend, err := grpc.NewClient("unix:"+runtime, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawgrpc.Codec{}), grpc.WaitForReady(true)))
	require.NoError(t, err)
	p := &criProxy{
		socket: dir + "/cri.sock", backend: backend, random: random, done: map[string]int{}, conns: map[net.Conn]struct{}{},
	}
	p.server = grpc.NewServer(grpc.ForceServerCodec(rawgrpc.Codec{}), grpc.UnknownServiceHandler(p.handle))
	listener, err := net.Listen("unix", p.socket)
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { _ = p.server.Serve(trackingListener{listener, p}) }) // it ends with Stop
	t.Cleanup(func() {
		p.server.Stop()
		serving.Wait()
		require.NoError(t, backend.Close())
	})
	return p
}

func (p *criProxy) set(f faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = f
}

// cut ends all connections.
func (p *criProxy) cut() {
	p.mu.Lock()
	conns := maps.Clone(p.conns)
	p.done["cut"]++
	p.mu.Unlock()
	for conn := range conns {
		_ = conn.Close() // the server detects it
	}
}

// counts returns the number of each fault so far.
func (p *criProxy) counts() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.done)
}

// happens decides randomly whether a fault happens, and counts it.
func (p *criProxy) happens(what string, share func(faults) float64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.random.Float64() >= share(p.faults) {
		return false
	}
	p.done[what]++
	return true
}

func (p *criProxy) delay() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Duration(p.random.Int64N(int64(slowest)))
}

func (p *criProxy) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request rawgrpc.Message
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	if strings.HasSuffix(method, "/GetContainerEvents") {
		return p.events(stream, method, &request)
	}
	if p.happens("refused", func(f faults) float64 { return f.refuse }) {
		return status.Errorf(codes.Unavailable, "%s: refused by the test", method)
	}
	if p.happens("slow", func(f faults) float64 { return f.slow }) {
		time.Sleep(p.delay())
	}
	var answer rawgrpc.Message
	if err := p.backend.Invoke(stream.Context(), method, &request, &answer); err != nil {
		return err
	}
	if p.happens("forgotten", func(f faults) float64 { return f.forget }) {
		return status.Errorf(codes.Unknown, "%s: executed, but the test lost the response", method)
	}
	return stream.SendMsg(&answer)
}

// events forwards events, each with its own delay, so that later ones may come first.
func (p *criProxy) events(to grpc.ServerStream, method string, request *rawgrpc.Message) error {
	from, err := p.backend.NewStream(to.Context(), &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	if err := errors.Join(from.SendMsg(request), from.CloseSend()); err != nil {
		return err
	}
	var sending sync.Mutex
	var under sync.WaitGroup
	defer under.Wait()
	for {
		var event rawgrpc.Message
		if err := from.RecvMsg(&event); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if p.happens("dropped", func(f faults) float64 { return max(f.drop, f.all) }) {
			continue
		}
		times := 1
		if p.happens("doubled", func(f faults) float64 { return f.double }) {
			times = 2
		}
		for range times {
			var wait time.Duration
			if p.happens("late", func(f faults) float64 { return f.late }) {
				wait = p.delay()
			}
			under.Go(func() {
				select {
				case <-time.After(wait):
				case <-to.Context().Done():
					return
				}
				sending.Lock()
				defer sending.Unlock()
				_ = to.SendMsg(&event) // a stream that has ended needs no more events
			})
		}
	}
}

// trackingListener is a listener whose connections the proxy can cut.
type trackingListener struct {
	net.Listener
	proxy *criProxy
}

func (n trackingListener) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err != nil {
		return nil, err
	}
	n.proxy.mu.Lock()
	defer n.proxy.mu.Unlock()
	n.proxy.conns[conn] = struct{}{}
	return trackedConn{conn, n.proxy}, nil
}

type trackedConn struct {
	net.Conn
	proxy *criProxy
}

func (f trackedConn) Close() error {
	f.proxy.mu.Lock()
	delete(f.proxy.conns, f.Conn)
	f.proxy.mu.Unlock()
	return f.Conn.Close()
}
