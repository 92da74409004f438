package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/jackc/pgx/v5"
)

// errUnsound is what a check found. Any other error says only that it could not check.
var errUnsound = errors.New("the database is not sound")

// maxReported is how many numbers an error names.
const maxReported = 10

// checkLog checks that the database has what the log says, and prints how much that is.
func checkLog(ctx context.Context, o options) error {
	file, err := readLog(o.log)
	if err != nil {
		return fmt.Errorf("open the log of commits: %w", err)
	}
	defer file.Close()
	acknowledged, err := parseLog(file, o.lines)
	if err != nil {
		return err
	}
	conn, err := connect(ctx, o.url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	// One snapshot for all queries: a writer goes on.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(ctx)
	t := newTable()
	if err := t.read(ctx, tx); err != nil {
		return err
	}
	counts, err := t.compareSessions(ctx, tx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.compare(acknowledged), counts); err != nil {
		return fmt.Errorf("%w: %w", errUnsound, err)
	}
	if o.deep {
		if err := amcheck(ctx, conn); err != nil {
			return err
		}
	}
	fmt.Printf("%d acknowledged commits are there; %d rows\n", len(acknowledged), t.rows)
	return nil
}

// parseLog reads the numbers of the first lines. A last line without its end was not written completely.
func parseLog(from io.Reader, lines int) ([]int64, error) {
	var numbers []int64
	reader := bufio.NewReader(from)
	for lines < 0 || len(numbers) < lines {
		line, err := reader.ReadString('\n')
		if errors.Is(err, io.EOF) {
			if lines >= 0 {
				return nil, fmt.Errorf("the log has %d lines, not %d", len(numbers), lines)
			}
			return numbers, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the log of commits: %w", err)
		}
		number, err := strconv.ParseInt(line[:len(line)-1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("line %d of the log of commits: %w", len(numbers)+1, err)
		}
		numbers = append(numbers, number)
	}
	return numbers, nil
}

// table is what the database has.
type table struct {
	rows      int
	times     map[int64]int // how often each number is there
	bySession map[int]int64
	wrong     []int64
}

func newTable() *table { return &table{times: make(map[int64]int), bySession: make(map[int]int64)} }

// read reads the table itself, not an index.
func (t *table) read(ctx context.Context, tx pgx.Tx) error {
	for _, setting := range []string{"enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan"} {
		if _, err := tx.Exec(ctx, "set local "+setting+" = off"); err != nil {
			return fmt.Errorf("set %s: %w", setting, err)
		}
	}
	rows, err := tx.Query(ctx, "select n, session, content from commits")
	if err != nil {
		return fmt.Errorf("read the table: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var number int64
		var session int
		var text string
		if err := rows.Scan(&number, &session, &text); err != nil {
			return fmt.Errorf("read the table: %w", err)
		}
		t.rows++
		t.times[number]++
		t.bySession[session]++
		if text != content(number) {
			t.wrong = append(t.wrong, number)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the table: %w", err)
	}
	return nil
}

// compare compares it with what was acknowledged.
func (t *table) compare(acknowledged []int64) error {
	var lost, twice []int64
	for _, number := range acknowledged {
		if t.times[number] == 0 {
			lost = append(lost, number)
		}
	}
	for number, times := range t.times {
		if times > 1 {
			twice = append(twice, number)
		}
	}
	return errors.Join(report("acknowledged commits are lost", lost), report("commits exist twice", twice),
		report("commits have another content", t.wrong))
}

func report(what string, numbers []int64) error {
	if len(numbers) == 0 {
		return nil
	}
	return fmt.Errorf("%d %s, such as %v", len(numbers), what, numbers[:min(len(numbers), maxReported)])
}

// compareSessions finds transactions of which a part is missing.
func (t *table) compareSessions(ctx context.Context, tx pgx.Tx) (problem, err error) {
	rows, err := tx.Query(ctx, "select id, commits from sessions")
	if err != nil {
		return nil, fmt.Errorf("read the sessions: %w", err)
	}
	defer rows.Close()
	var problems []error
	for rows.Next() {
		var id int
		var commits int64
		if err := rows.Scan(&id, &commits); err != nil {
			return nil, fmt.Errorf("read the sessions: %w", err)
		}
		if commits != t.bySession[id] {
			problems = append(problems, fmt.Errorf("session %d has counted %d commits and has %d rows", id, commits, t.bySession[id]))
		}
	}
	return errors.Join(problems...), rows.Err()
}

// amcheck has PostgreSQL verify its tables against its indexes and its catalogue.
func amcheck(ctx context.Context, conn *pgx.Conn) error {
	if _, err := conn.Exec(ctx, "create extension if not exists amcheck"); err != nil {
		return fmt.Errorf("amcheck: %w", err)
	}
	var corrupt int
	query := `select count(*) from pg_class c cross join lateral verify_heapam(c.oid) where c.relkind = 'r' and c.relpersistence = 'p'`
	if err := conn.QueryRow(ctx, query).Scan(&corrupt); err != nil {
		return fmt.Errorf("amcheck of tables: %w", err)
	}
	if corrupt != 0 {
		return fmt.Errorf("%w: amcheck finds %d errors in tables", errUnsound, corrupt)
	}
	query = `select count(bt_index_check(i.indexrelid, true)::text) from pg_index i join pg_class c on c.oid = i.indexrelid
		join pg_am a on a.oid = c.relam where a.amname = 'btree' and c.relpersistence = 'p' and i.indisready and i.indisvalid`
	if err := conn.QueryRow(ctx, query).Scan(&corrupt); err != nil { // it fails at the first error
		return fmt.Errorf("amcheck of indexes: %w", err)
	}
	return nil
}
