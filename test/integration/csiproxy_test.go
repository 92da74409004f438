//go:build integration

package integration

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"path"
	"slices"
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

// longestHang bounds how long the proxy keeps a caller waiting.
const longestHang = 4 * time.Second

// csiProxy is a proxy for a CSI driver. It makes a share of the calls that change something fail before they reach the
// driver, hang, or succeed with a lost response.
type csiProxy struct {
	socket string
	driver *grpc.ClientConn
	around aroundCall

	mu     sync.Mutex // guards all below
	random *rand.Rand
	share  float64 // of the calls with a fault
	faults map[string]int
}

// aroundCall makes a call of the driver, and may do something before and after it.
type aroundCall func(method string, request []byte, call func() error) error

// passOn is the aroundCall that does nothing else.
func passOn(_ string, _ []byte, call func() error) error { return call() }

func newCSIProxy(t testing.TB, socket, driver string, random *rand.Rand, around aroundCall) *csiProxy {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	listener, err := net.Listen("unix", socket)
	require.NoError(t, err)
	p := &csiProxy{socket: socket, driver: conn, random: random, around: around, faults: make(map[string]int)}
	server := grpc.NewServer(grpc.UnknownServiceHandler(p.handle), grpc.ForceServerCodec(rawgrpc.Codec{}))
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
		require.NoError(t, conn.Close())
	})
	return p
}

// setFaultShare sets the share of calls with a fault from now on.
func (p *csiProxy) setFaultShare(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.share = share
}

// faultSummary lists the faults so far.
func (p *csiProxy) faultSummary() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var words []string
	for _, name := range slices.Sorted(maps.Keys(p.faults)) {
		words = append(words, fmt.Sprintf("%s %d", name, p.faults[name]))
	}
	return strings.Join(words, ", ")
}

// fault is what happens to one call.
type fault struct {
	code    codes.Code // codes.OK: nothing
	reaches bool       // the driver, before the caller is failed
	hang    time.Duration
}

// choose returns the fault of a call. A code such as Internal means that the call had no effect, so only calls that do not
// reach the driver may fail with one.
func (p *csiProxy) choose(method string) fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	name := path.Base(method)
	changes := strings.Contains(name, "Stage") || strings.Contains(name, "Publish") || strings.Contains(name, "Unstage") ||
		strings.Contains(name, "Unpublish") || name == "CreateVolume" || name == "DeleteVolume"
	if !changes || p.random.Float64() >= p.share {
		return fault{}
	}
	open := []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.Aborted}
	f, kind := fault{code: open[p.random.IntN(len(open))]}, "failed"
	switch p.random.IntN(4) {
	case 0:
		f.code = []codes.Code{codes.Internal, codes.FailedPrecondition, codes.Unavailable}[p.random.IntN(3)]
	case 1:
		f.reaches, kind = true, "response lost"
	case 2:
		f.hang, kind = time.Duration(p.random.Int64N(int64(longestHang))), "hung"
	case 3:
		f.reaches, kind = true, "hung after success"
		f.hang = time.Duration(p.random.Int64N(int64(longestHang)))
	}
	p.faults[kind]++
	return f
}

func (p *csiProxy) handle(_ any, stream grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(stream)
	if !ok {
		return status.Error(codes.Internal, "a call without a method")
	}
	var request, answer rawgrpc.Message
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	f := p.choose(method)
	if f.code == codes.OK || f.reaches {
		// A call goes on when its caller has died, as in a driver.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(stream.Context()), waitTimeout)
		defer cancel()
		call := func() error {
			return p.driver.Invoke(ctx, method, &request, &answer, grpc.ForceCodec(rawgrpc.Codec{}))
		}
		if err := p.around(method, request.Data, call); err != nil {
			return err
		}
	}
	if f.hang > 0 {
		select {
		case <-stream.Context().Done():
		case <-time.After(f.hang):
		}
	}
	if f.code != codes.OK {
		return status.Errorf(f.code, "%s met a planned fault", path.Base(method))
	}
	return stream.SendMsg(&answer)
}
