package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// schema has a row for each commit, and for each session how many commits it has: both change in one transaction, so that a part of
// one would show.
const schema = `
create table if not exists sessions (id int primary key, commits bigint not null);
create table if not exists commits (n bigint primary key, session int not null, content text not null);
create index if not exists commits_session on commits (session, n);`

// pause is between the commits of a session: the database shall not grow beyond its volume.
const pause = 15 * time.Millisecond

// content is what the row has: it follows from the number, so that a wrong page shows.
func content(number int64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "commit %d", number))
	return strings.Repeat(hex.EncodeToString(sum[:]), 1+int(sum[0])%4)
}

// writer commits numbers that increase, from all sessions.
type writer struct {
	options options
	next    atomic.Int64

	mu  sync.Mutex // guards the log, and what goes wrong with it
	log *os.File
	err error
}

// write commits until ctx ends, whatever happens to the database.
func write(ctx context.Context, o options) error {
	log, err := openLog(o.log)
	if err != nil {
		return fmt.Errorf("open the log of commits: %w", err)
	}
	defer log.Close()
	w := &writer{options: o, log: log}
	w.next.Store(o.from)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var sessions sync.WaitGroup
	for id := range o.sessions {
		sessions.Go(func() {
			defer stop() // a session ends before the others only when the log fails
			w.session(ctx, id)
		})
	}
	sessions.Wait()
	return w.err
}

// session commits over one connection after the other.
func (w *writer) session(ctx context.Context, id int) {
	var conn *pgx.Conn
	for ctx.Err() == nil && w.failure() == nil {
		err := w.step(ctx, id, &conn)
		delay := pause
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s session %d: %v\n", time.Now().Format(time.StampMilli), id, err)
			w.close(conn)
			conn, delay = nil, 10*pause
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay): // it limits the rate
		}
	}
	w.close(conn)
}

func (w *writer) close(conn *pgx.Conn) {
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.options.timeout)
	defer cancel()
	_ = conn.Close(ctx) // the server may have gone
}

// step connects if there is no connection, and commits one number. Whether a commit without a response has happened is unknown: its number
// is not used again.
func (w *writer) step(ctx context.Context, id int, conn **pgx.Conn) error {
	if *conn == nil {
		opened, err := w.open(ctx, id)
		if err != nil {
			return err
		}
		*conn = opened
	}
	ctx, cancel := context.WithTimeout(ctx, w.options.timeout)
	defer cancel()
	number := w.next.Add(1) - 1
	err := pgx.BeginFunc(ctx, *conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "insert into commits values ($1, $2, $3)", number, id, content(number)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "update sessions set commits = commits + 1 where id = $1", id)
		return err
	})
	if err != nil {
		return fmt.Errorf("commit %d: %w", number, err)
	}
	w.acknowledged(number)
	return nil
}

// open connects, and prepares what the session needs.
func (w *writer) open(ctx context.Context, id int) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, w.options.timeout)
	defer cancel()
	conn, err := connect(ctx, w.options.url)
	if err != nil {
		return nil, err
	}
	if err := prepare(ctx, conn, id); err != nil {
		w.close(conn)
		return nil, err
	}
	return conn, nil
}

// prepare makes the tables, one session at a time, and the session's row.
func prepare(ctx context.Context, conn *pgx.Conn, id int) error {
	err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		for _, statement := range []string{"select pg_advisory_xact_lock(1)", schema} {
			if _, err := tx.Exec(ctx, statement, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		_, err := tx.Exec(ctx, "insert into sessions values ($1, 0) on conflict do nothing", id)
		return err
	})
	if err != nil {
		return fmt.Errorf("prepare tables: %w", err)
	}
	return nil
}

func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	var durable string
	query := "select string_agg(setting, ',' order by name) from pg_settings where name in ('fsync', 'full_page_writes', 'synchronous_commit', 'data_checksums')"
	if err := conn.QueryRow(ctx, query).Scan(&durable); err != nil || durable != "on,on,on,on" {
		_ = conn.Close(ctx)
		var refused *pgconn.PgError
		if err != nil && !errors.As(err, &refused) {
			return nil, fmt.Errorf("connect: %w", err)
		}
		return nil, fmt.Errorf("the database is not durable, so that it would prove nothing: checksums, fsync, full pages, synchronous commit are %q: %w", durable, err)
	}
	return conn, nil
}

// acknowledged logs a commit.
func (w *writer) acknowledged(number int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	if _, err := fmt.Fprintln(w.log, number); err != nil {
		w.err = fmt.Errorf("log commit %d: %w", number, err)
		return
	}
	if w.log == os.Stdout {
		return // who reads it keeps it
	}
	if err := w.log.Sync(); err != nil {
		w.err = fmt.Errorf("flush the log of commits: %w", err)
	}
}

func (w *writer) failure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
