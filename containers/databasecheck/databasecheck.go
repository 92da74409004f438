// Package databasecheck reads a database of containerd whole, as bbolt finds its pages, and says whether they fit together.
//
// bbolt trusts its pages. On damaged ones it panics, faults, exhausts its stack or does not come to an end: a check is therefore a
// process of its own, the command `containerd check-database`, whose caller limits its time. How the process ends is the result.
package databasecheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/urfave/cli/v3"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

// The exit codes of the command. Any other end, by a panic or a signal, says that the database is damaged, too.
const (
	// exitUnknown says that the database could not be read for a reason that is not its own: it is in use, or may not be opened.
	exitUnknown = 1
	exitDamaged = 3
)

// lockTimeout is how long the command waits for whoever has the database open.
const lockTimeout = time.Second

// What a check may use: pages that contain each other would never end, and a page may say that it lists any number of free ones. Whole
// databases need a few KiB of stack, and less memory than they are large.
const (
	maxStack          = 64 << 20
	maxMemory         = 256 << 20
	maxMemoryPerBytes = 4
)

// trialBucket is made and removed to see whether the database can be written.
var trialBucket = []byte("berth-check")

// Command returns the command check-database.
func Command() *cli.Command {
	return &cli.Command{
		Name: "check-database", Usage: "say whether the pages of a database are whole", ArgsUsage: "FILE", HideHelpCommand: true,
		Action: func(_ context.Context, cmd *cli.Command) error {
			if cmd.NArg() != 1 {
				return cli.Exit("usage: containerd check-database FILE", exitUnknown)
			}
			return check(cmd.Args().First())
		},
	}
}

// check returns an error with one of the exit codes if the database is not whole.
func check(path string) error {
	info, err := os.Stat(path)
	if err != nil { // bbolt would report some of these as its own
		return cli.Exit(err, exitUnknown)
	}
	limit := maxMemory + maxMemoryPerBytes*uint64(info.Size())
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		return cli.Exit(fmt.Errorf("limit the memory of the check: %w", err), exitUnknown)
	}
	debug.SetMaxStack(maxStack)
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout})
	var system *fs.PathError
	if errors.Is(err, bolterrors.ErrTimeout) || errors.As(err, &system) {
		return cli.Exit(err, exitUnknown)
	}
	if err == nil {
		err = errors.Join(checkPages(db, info.Size()), db.Close())
	}
	if errors.As(err, &system) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return cli.Exit(err, exitUnknown)
	}
	if err != nil {
		return cli.Exit(fmt.Errorf("database %s: %w", path, err), exitDamaged)
	}
	return nil
}

// maxRewritten is the size up to which a database is written as a whole, in memory at first.
const maxRewritten = 64 << 20

// checkPages reads all pages. If they fit together, it writes all values as they are, and reads the pages again: keys that do not fit to
// the page above, and a list of free pages that is wrong, show in that alone.
func checkPages(db *bolt.DB, size int64) error {
	if err := db.View(readPages); err != nil {
		return err
	}
	if err := db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(trialBucket)
		if err != nil || size > maxRewritten {
			return err
		}
		return tx.ForEach(func(_ []byte, bucket *bolt.Bucket) error { return rewrite(bucket) })
	}); err != nil {
		return err
	}
	if err := db.Update(func(tx *bolt.Tx) error { return tx.DeleteBucket(trialBucket) }); err != nil {
		return err
	}
	return db.View(readPages)
}

// rewrite writes each value of a bucket, and of those in it.
func rewrite(bucket *bolt.Bucket) error {
	var keys [][]byte // a bucket must not change while it is read
	if err := bucket.ForEach(func(key, _ []byte) error {
		keys = append(keys, bytes.Clone(key))
		return nil
	}); err != nil {
		return err
	}
	for _, key := range keys {
		var err error
		if value := bucket.Get(key); value != nil {
			err = bucket.Put(key, bytes.Clone(value))
		} else if inner := bucket.Bucket(key); inner != nil {
			err = rewrite(inner)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readPages returns what is wrong with the pages.
func readPages(tx *bolt.Tx) error {
	for err := range tx.Check() {
		// A page that nothing leads to wastes its space and harms nothing.
		if !strings.HasSuffix(err.Error(), "unreachable unfreed") {
			return err
		}
	}
	return nil
}
