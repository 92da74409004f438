package etcd

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
)

// checker makes a program that says about each database what its exit code means.
func checker(t *testing.T, exit int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "checker")
	script := fmt.Sprintf("#!/bin/sh\n[ \"$1\" = check-database ] && [ -e \"$2\" ] || exit 1\necho page 7 is another >&2\nexit %d\n", exit)
	require.NoError(t, os.WriteFile(path, []byte(script), 0o700))
	return path
}

// exitDamaged is how the checker ends if the database is damaged.
const exitDamaged = 3

// fill makes so many changes that etcd has a snapshot, and returns the last revision.
func fill(t *testing.T, dir string, changes int) (revision int64) {
	t.Helper()
	runWith(t, Config{DataDir: dir, UnsafeNoFsync: true}, func(client *clientv3.Client) {
		var puts errgroup.Group
		puts.SetLimit(50)
		for i := range changes {
			puts.Go(func() error {
				_, err := client.Put(t.Context(), "key "+strconv.Itoa(i%1000), strconv.Itoa(i))
				return err
			})
		}
		require.NoError(t, puts.Wait())
		_, err := client.Compact(t.Context(), int64(changes/2), clientv3.WithCompactPhysical())
		require.NoError(t, err)
		response, err := client.Put(t.Context(), "last", "value")
		require.NoError(t, err)
		revision = response.Header.Revision
	})
	return revision
}

// content is all that the store has, with the revisions.
func content(t *testing.T, client *clientv3.Client) string {
	t.Helper()
	response, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	return fmt.Sprint(response.Header.Revision, response.Kvs)
}

// TestDamagedDatabaseIsMadeAgain damages all pages of a database after many changes: the log has them all, and nothing is lost.
func TestDamagedDatabaseIsMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	changes := 12000 // more than there are between two snapshots
	fill(t, dir, changes)
	snapshots := filepath.Join(dir, "member", "snap", "*.snap")
	found, err := filepath.Glob(snapshots)
	require.NoError(t, err)
	require.NotEmpty(t, found, "etcd has made a snapshot")
	var want string
	run(t, dir, func(client *clientv3.Client) { want = content(t, client) })

	database := filepath.Join(dir, "member", "snap", "db")
	damagePages(t, database)
	runWith(t, Config{DataDir: dir, Checker: checker(t, exitDamaged), Crashed: true}, func(client *clientv3.Client) {
		require.Equal(t, want, content(t, client))
		_, err := client.Get(t.Context(), "last", clientv3.WithRev(10))
		require.ErrorContains(t, err, "compacted", "what was removed stays removed")
	})
	require.FileExists(t, database+".damaged")
	run(t, dir, func(client *clientv3.Client) { require.Equal(t, want, content(t, client)) })
}

// TestDamagedLogIsMadeAnew flips a bit at the beginning, in a change and in the last record of a log: the database has everything.
func TestDamagedLogIsMadeAnew(t *testing.T) {
	for name, at := range map[string]func(written []byte) int{
		"the beginning": func([]byte) int { return logHeader },
		"a change":      func(written []byte) int { return bytes.Index(written, []byte("key 500")) },
		"the end":       func(written []byte) int { return len(written) - 2 },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "etcd")
			fill(t, dir, 1000)
			var want string
			run(t, dir, func(client *clientv3.Client) { want = content(t, client) })
			damageLog(t, filepath.Join(dir, "member", "wal", "0000000000000000-0000000000000000.wal"), at)

			require.ErrorContains(t, startError(t, Config{DataDir: dir}), "is damaged", "nothing says that the database is whole")
			err := startError(t, Config{DataDir: dir, Checker: checker(t, exitDamaged)})
			require.ErrorContains(t, err, "berth snapshot restore", "the database is damaged, too")
			require.NoDirExists(t, filepath.Join(dir, "member.damaged"))

			runWith(t, Config{DataDir: dir, Checker: checker(t, 0)}, func(client *clientv3.Client) {
				require.Equal(t, want, content(t, client))
				_, err := client.Put(t.Context(), "after", "it")
				require.NoError(t, err)
			})
			require.FileExists(t, filepath.Join(dir, "member.damaged", "member", "snap", "db"), "what was damaged is kept")
			run(t, dir, func(client *clientv3.Client) {
				response, err := client.Get(t.Context(), "after")
				require.NoError(t, err)
				require.Len(t, response.Kvs, 1)
			})
		})
	}
}

// TestDamagedLogLosesNothing flips a bit anywhere: in a change, a checksum, a length or a snapshot.
func TestDamagedLogLosesNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	saved := filepath.Join(t.TempDir(), "etcd")
	fill(t, saved, 300)
	var want string
	run(t, saved, func(client *clientv3.Client) { want = content(t, client) })
	for range 20 {
		dir, at := filepath.Join(t.TempDir(), "etcd"), random.Float64()
		require.NoError(t, os.CopyFS(dir, os.DirFS(saved)))
		damageLog(t, filepath.Join(dir, "member", "wal", "0000000000000000-0000000000000000.wal"), func(written []byte) int {
			return logHeader + int(at*float64(len(written)-logHeader))
		})
		runWith(t, Config{DataDir: dir, Checker: checker(t, 0), UnsafeNoFsync: true}, func(client *clientv3.Client) {
			require.Equal(t, want, content(t, client), "seed %d, at %v of the log", seed, at)
		})
		require.NoError(t, os.RemoveAll(dir))
	}
}

// logHeader is how many bytes the length of a log's first record has. A wrong one there is not part of the test.
const logHeader = 8

// damageLog flips a bit of the byte whose place at returns, given all that is written of the log. One of padding harms nothing.
func damageLog(t *testing.T, path string, at func(written []byte) int) {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	data[at(bytes.TrimRight(data, "\x00"))] ^= 0x10
	require.NoError(t, os.WriteFile(path, data, 0o600))
}

// startError starts a store that must not become ready, and returns why it does not.
func startError(t *testing.T, config Config) error {
	t.Helper()
	config.Socket, config.LogLevel = filepath.Join(t.TempDir(), "s"), "error"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	return New(config).Run(ctx, cancel)
}

// damagePages replaces all pages but those that describe the database.
func damagePages(t *testing.T, path string) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer file.Close()
	described := int64(2 * os.Getpagesize())
	_, err = file.WriteAt(make([]byte, info.Size()-described), described)
	require.NoError(t, err)
}

// TestDatabaseThatCannotBeMadeAgain: the log no longer has the first changes.
func TestDatabaseThatCannotBeMadeAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	fill(t, dir, 100)
	logs := filepath.Join(dir, "member", "wal")
	require.NoError(t, os.Rename(filepath.Join(logs, "0000000000000000-0000000000000000.wal"), filepath.Join(logs, "0000000000000001-0000000000000050.wal")))
	database := filepath.Join(dir, "member", "snap", "db")
	damagePages(t, database)
	err := startError(t, Config{DataDir: dir, Checker: checker(t, exitDamaged), Crashed: true})
	require.ErrorContains(t, err, database)
	require.ErrorContains(t, err, "page 7 is another")
	require.ErrorContains(t, err, "berth snapshot restore")
	require.NoFileExists(t, database+".damaged")
}

// TestDatabaseThatIsNotKnownToBeDamaged is opened.
func TestDatabaseThatIsNotKnownToBeDamaged(t *testing.T) {
	for name, program := range map[string]string{"whole": checker(t, 0), "unknown": checker(t, exitUnknown), "no checker": "/nonexistent"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "etcd")
			revision := fill(t, dir, 100)
			runWith(t, Config{DataDir: dir, Checker: program, Crashed: true}, func(client *clientv3.Client) {
				response, err := client.Get(t.Context(), "last")
				require.NoError(t, err)
				require.Equal(t, revision, response.Header.Revision)
			})
			require.NoFileExists(t, filepath.Join(dir, "member", "snap", "db.damaged"))
		})
	}
}
