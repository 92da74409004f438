package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// options are the flags of both commands.
type options struct {
	url, log        string
	from            int64
	lines, sessions int
	timeout         time.Duration
	deep            bool
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:])
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "commits:", err)
	if isUnsound(err) {
		os.Exit(1)
	}
	os.Exit(unknown)
}

// unknown is the exit code of a check that could not be made.
const unknown = 75

// isUnsound reports whether the error says that data are lost or damaged.
func isUnsound(err error) bool {
	var refused *pgconn.PgError
	return errors.Is(err, errUnsound) || errors.As(err, &refused) && strings.HasPrefix(refused.Code, corruptClass)
}

// corruptClass is the class of PostgreSQL's error codes for damaged data, of which it reports what its checksums and amcheck find.
const corruptClass = "XX"

func run(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, options) error{"write": write, "check": checkLog}
	if len(args) == 0 || commands[args[0]] == nil {
		return fmt.Errorf("usage: commits write|check FLAGS; %q is neither", args)
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.StringVar(&o.url, "url", "", "the database")
	flags.StringVar(&o.log, "log", "", "the log of acknowledged commits")
	flags.Int64Var(&o.from, "from", 1, "write: the first number; no number may be used twice")
	flags.IntVar(&o.sessions, "sessions", 4, "write: how many sessions commit at the same time")
	flags.DurationVar(&o.timeout, "timeout", 3*time.Second, "write: how long connecting or a commit may take: an address whose Pod has gone does not respond")
	flags.IntVar(&o.lines, "lines", -1, "check: how many lines of the log count; all if negative")
	flags.BoolVar(&o.deep, "deep", false, "check: verify tables and indexes by amcheck, too")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	return commands[args[0]](ctx, o)
}

// openLog opens the log for writing.
func openLog(path string) (*os.File, error) {
	if path == "-" {
		return os.Stdout, nil
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
}

// readLog opens the log for reading.
func readLog(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	return os.Open(path)
}
