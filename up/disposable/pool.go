package disposable

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/internal/accept"
	"github.com/berth-dev/berth/internal/contain"
)

// Pool keeps clusters ready and gives each to one connection. Taking a cluster has the next one started.
type Pool struct {
	start    func(ctx context.Context) (*Cluster, error)
	listener net.Listener
	ready    chan started
	running  sync.WaitGroup
	size     int
	filled   chan struct{}
	starts   atomic.Int64 // that have ended
	ctx      context.Context
	cancel   context.CancelFunc
}

// started is a cluster, or why it did not start.
type started struct {
	cluster *Cluster
	err     error
}

// The messages of a connection: the pool writes an offer, the client may request the end, and the pool replies when that is done.
type (
	offer struct {
		Berth string `json:"berth"`
		Dir   string `json:"dir"`
		PID   int    `json:"pid"`
		Error string `json:"error,omitempty"`
	}
	endRequest struct {
		Timeout time.Duration `json:"timeout"`
		Force   bool          `json:"force"`
	}
	endReply struct {
		Error string `json:"error,omitempty"`
	}
)

// PoolEnv is the environment variable with the socket of the pool that runs a command.
const PoolEnv = "BERTHTEST_POOL"

// SocketName is the name of a pool's socket in its directory.
const SocketName = "pool.sock"

// NewPool starts a pool of size clusters, which listens on the socket SocketName in dir. Close ends it.
func NewPool(ctx context.Context, size int, dir string, start func(ctx context.Context) (*Cluster, error)) (*Pool, error) {
	if size < 1 {
		return nil, fmt.Errorf("a pool of %d clusters: want at least one", size)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", filepath.Join(dir, SocketName))
	if err != nil {
		return nil, fmt.Errorf("listen for those who take clusters: %w", err)
	}
	// Each starter holds one cluster that is ready, the channel the others. More starters than processors make no start faster.
	starters := min(size, runtime.GOMAXPROCS(0))
	p := &Pool{start: start, listener: listener, ready: make(chan started, size-starters), size: size, filled: make(chan struct{})}
	p.ctx, p.cancel = context.WithCancel(ctx)
	for range starters {
		p.running.Go(contain.Guard("disposable.fill", "", p.fill))
	}
	p.running.Go(contain.Guard("disposable.accept", "", p.accept))
	return p, nil
}

// fill starts clusters until the pool is closed. A failed start is reported to the next client, so that failures do not repeat without one.
func (p *Pool) fill() {
	for p.ctx.Err() == nil {
		var next started
		next.cluster, next.err = p.start(p.ctx)
		if p.starts.Add(1) == int64(p.size) {
			close(p.filled)
		}
		select {
		case p.ready <- next:
		case <-p.ctx.Done():
			next.discard()
		}
	}
}

// Filled is closed once as many clusters have been started as the pool has, whether they were taken or not.
func (p *Pool) Filled() <-chan struct{} { return p.filled }

// discard ends a cluster that is not used any more. What cannot be removed is left to the next start.
func (s started) discard() {
	if s.cluster != nil {
		_ = s.cluster.ender.discard(0)
	}
}

// accept serves connections until the listener is closed.
func (p *Pool) accept() {
	for {
		conn, err := accept.Next(p.ctx, p.listener)
		if err != nil {
			return
		}
		p.running.Go(contain.Guard("disposable.serve", "", func() {
			defer conn.Close()
			p.serve(conn)
		}))
	}
}

// serve gives a connection a cluster, which ends with the connection or by its request.
func (p *Pool) serve(conn net.Conn) {
	requests := make(chan *endRequest, 1)
	go contain.Guard("disposable.read", "", func() { // until the connection is closed
		defer close(requests)
		var request endRequest
		if json.NewDecoder(conn).Decode(&request) == nil {
			requests <- &request
		}
	})()
	var next started
	select {
	case next = <-p.ready:
	case <-requests: // nothing can be requested yet: it was closed
		return
	case <-p.ctx.Done():
		return
	}
	reply := json.NewEncoder(conn)
	if next.err != nil {
		_ = reply.Encode(offer{Error: next.err.Error()}) // a client that has gone away misses nothing
		return
	}
	c := next.cluster
	if reply.Encode(offer{Berth: c.berth, Dir: c.dir, PID: c.pid}) != nil {
		next.discard()
		return
	}
	var request *endRequest
	select {
	case request = <-requests:
	case <-p.ctx.Done():
	}
	if request == nil { // the client has ended
		next.discard()
		return
	}
	var result endReply
	if err := c.ender.end(request.Timeout, request.Force); err != nil {
		result.Error = err.Error()
	}
	_ = reply.Encode(result)
}

// Close ends all clusters of the pool, also those that are taken.
func (p *Pool) Close() error {
	p.cancel()
	err := p.listener.Close()
	p.running.Wait()
	for {
		select {
		case next := <-p.ready:
			next.discard()
		default:
			return err
		}
	}
}

// taken is a cluster of a pool.
type taken struct {
	conn    net.Conn
	replies *json.Decoder
}

// Take takes a cluster of the pool that listens on the socket, and waits until one is ready, or ctx ends. It ends with this process, too.
func Take(ctx context.Context, socket string) (_ *Cluster, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("take a cluster of the pool: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("take a cluster of the pool: %w", err), conn.Close())
		}
	}()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })() // ends the read below
	t := &taken{conn: conn, replies: json.NewDecoder(conn)}
	var got offer
	if err := t.replies.Decode(&got); err != nil {
		return nil, errors.Join(ctx.Err(), err)
	}
	if got.Error != "" {
		return nil, errors.New(got.Error)
	}
	return &Cluster{berth: got.Berth, dir: got.Dir, pid: got.PID, ender: t}, nil
}

// discard closes the connection, which the pool discards the cluster for.
func (t *taken) discard(time.Duration) error { return t.conn.Close() }

func (t *taken) end(timeout time.Duration, force bool) error {
	defer t.conn.Close()
	err := json.NewEncoder(t.conn).Encode(endRequest{Timeout: timeout, Force: force})
	var reply endReply
	if err == nil {
		err = t.replies.Decode(&reply)
	}
	if err != nil {
		return fmt.Errorf("have the pool end a cluster: %w", err)
	}
	if reply.Error != "" {
		return errors.New(reply.Error)
	}
	return nil
}
