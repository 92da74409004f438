package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// version is replaced by the linker (-X main.version=…).
var version = "dev"

// drain bounds how long requests in flight may take after SIGTERM; it is below the 30 s that a pod is given.
const drain = 10 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Getenv, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends.
func run(ctx context.Context, args []string, getenv func(string) string, out io.Writer) error {
	opts, err := parse(args, getenv)
	if err != nil {
		return err
	}
	if opts.version {
		fmt.Fprintln(out, "demo", version)
		return nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(opts.port)))
	if err != nil {
		return fmt.Errorf("listen on port %d: %w", opts.port, err)
	}
	fmt.Fprintf(out, "demo %s: counting visits in %s, listening on %s\n", version, opts.dataDir, listener.Addr())
	return serve(ctx, listener, handler(&counter{dir: opts.dataDir}, getenv("HOSTNAME")))
}

// options is what the flags and the environment say; a flag wins.
type options struct {
	port    int
	dataDir string
	version bool
}

func parse(args []string, getenv func(string) string) (options, error) {
	opts := options{port: 8080, dataDir: "/data"}
	if dir := getenv("DATA_DIR"); dir != "" {
		opts.dataDir = dir
	}
	if port := getenv("PORT"); port != "" {
		n, err := strconv.Atoi(port)
		if err != nil {
			return opts, fmt.Errorf("environment variable PORT %q is not a number", port)
		}
		opts.port = n
	}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // The error below says it, once.
	flags.IntVar(&opts.port, "port", opts.port, "TCP port to listen on (environment: PORT)")
	flags.StringVar(&opts.dataDir, "data-dir", opts.dataDir, "directory of the count file (environment: DATA_DIR)")
	flags.BoolVar(&opts.version, "v", false, "print the version and end")
	if err := flags.Parse(args); err != nil {
		return opts, err
	}
	if flags.NArg() > 0 {
		return opts, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if opts.port < 0 || opts.port > 65535 {
		return opts, fmt.Errorf("port %d is not between 0 and 65535", opts.port)
	}
	return opts, nil
}

// serve answers requests until ctx ends, then lets those in flight finish.
func serve(ctx context.Context, listener net.Listener, h http.Handler) error {
	server := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	err := server.Shutdown(ending)
	if err != nil {
		err = errors.Join(fmt.Errorf("finish requests within %s: %w", drain, err), server.Close())
	}
	<-failed
	return err
}
