// Package contain is the root of every goroutine and of every step that handles one object: a panic there becomes an error
// of that object, with a log entry that has the stack and a count, and everything else runs on.
//
// Its metric is the only state of the package, because a panic can occur where no dependency is at hand.
package contain

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
)

// minDelay and maxDelay bound the delay before Loop starts a function again. It doubles with each panic.
const (
	minDelay = time.Second
	maxDelay = time.Minute
)

// panics counts recovered panics by the place that recovered them.
var panics = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "berth_panics_total", Help: "Panics that were contained, by the step that panicked.",
}, []string{"site"})

// Metrics returns the counter of panics.
func Metrics() prometheus.Collector { return panics }

// PanicError is the error of a step that panicked.
type PanicError struct {
	// Site is the step, Object what it handled; empty if no single object.
	Site, Object string
	Value        any
	Stack        []byte
}

// Error returns what panicked and why, without the stack.
func (e *PanicError) Error() string {
	if e.Object == "" {
		return fmt.Sprintf("%s panicked: %v", e.Site, e.Value)
	}
	return fmt.Sprintf("%s of %s panicked: %v", e.Site, e.Object, e.Value)
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// Do runs fn and returns a panic of it as a *PanicError.
func Do(site, object string, fn func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = Record(site, object, value)
		}
	}()
	inject(site, object)
	return fn()
}

// Func returns a function that does the same, for the Go method of an errgroup.
func Func(site, object string, fn func() error) func() error {
	return func() error { return Do(site, object, fn) }
}

// Guard returns a function that runs fn and only records a panic of it: for goroutines whose end is their only result.
func Guard(site, object string, fn func()) func() {
	return func() {
		_ = Do(site, object, func() error { fn(); return nil })
	}
}

// Loop returns a function that runs fn until it returns, and again after a growing delay when it panicked, until ctx is done:
// for goroutines whose work never ends.
func Loop(ctx context.Context, site, object string, fn func(ctx context.Context)) func() {
	return func() {
		for delay := minDelay; ctx.Err() == nil; delay = min(2*delay, maxDelay) {
			if Do(site, object, func() error { fn(ctx); return nil }) == nil {
				return
			}
			wakeup.Sleep(ctx, clock.RealClock{}, delay)
		}
	}
}

// Record logs a recovered value with the stack, counts it, and returns it as an error. It must be called by the function that
// is deferred.
func Record(site, object string, value any) *PanicError {
	panics.WithLabelValues(site).Inc()
	e := &PanicError{Site: site, Object: object, Value: value, Stack: debug.Stack()}
	klog.ErrorS(nil, "Recovered from a panic; only the named object is affected", "site", site, "object", object,
		"panic", fmt.Sprint(value), "stack", string(e.Stack))
	return e
}

// Recover records a panic of the function that defers it, and swallows it.
func Recover(site, object string) {
	if value := recover(); value != nil {
		Record(site, object, value)
	}
}

// Install lets client-go's goroutines, such as those that call the handlers of informers, recover from panics instead of
// ending the process, and counts these. It is called once, by the main function.
func Install() {
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(context.Context, any) {
		panics.WithLabelValues("client-go").Inc()
	})
}

// ServerOptions returns the interceptors that turn a panic of a gRPC server's handler into the error Internal of that call.
func ServerOptions(server string, unary ...grpc.UnaryServerInterceptor) []grpc.ServerOption {
	outer := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		err = Do(server, info.FullMethod, func() (err error) {
			resp, err = handler(ctx, req)
			return err
		})
		return resp, internal(err)
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(append([]grpc.UnaryServerInterceptor{outer}, unary...)...),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return internal(Do(server, info.FullMethod, func() error { return handler(srv, stream) }))
		}),
	}
}

// Serve serves a gRPC server on a listener, which it closes, until ctx ends, which is no error. Calls under way are cancelled then.
func Serve(ctx context.Context, site string, server *grpc.Server, listener net.Listener) error {
	served := make(chan error, 1)
	go func() {
		err := Do(site, "", func() error { return server.Serve(listener) })
		served <- err
	}()
	select {
	case <-ctx.Done():
		server.Stop()
		<-served
		return nil
	case err := <-served:
		return err
	}
}

// internal hides what panicked from the client.
func internal(err error) error {
	if _, ok := err.(*PanicError); ok { //nolint:errorlint // only our own, unwrapped
		return status.Error(codes.Internal, "the handler panicked; see the server's log")
	}
	return err
}

// Handler returns a handler that responds with 500 when next panics, where net/http would only close the connection.
// http.ErrAbortHandler keeps its meaning.
func Handler(server string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			value := recover()
			if value == nil {
				return
			}
			if value == http.ErrAbortHandler { //nolint:errorlint // net/http compares it, too
				panic(value)
			}
			Record(server, r.Method+" "+r.URL.Path, value)
			// Without an effect if the handler has already written: then the client sees a response that ends early.
			http.Error(w, "internal error", http.StatusInternalServerError)
		}()
		inject(server, r.URL.Path)
		next.ServeHTTP(w, r)
	})
}
