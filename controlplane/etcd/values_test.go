package etcd

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The value that is damaged, and what it is then, in the database but not in the log.
const (
	wholeValue   = "a value that will be damaged"
	damagedAfter = "a value that wilx be damaged"
)

// damageValue damages a value within its page, which nothing in the database shows.
func damageValue(t *testing.T, dir string) {
	t.Helper()
	database := filepath.Join(dir, "member", "snap", "db")
	data, err := os.ReadFile(database)
	require.NoError(t, err)
	require.Contains(t, string(data), wholeValue)
	require.NoError(t, os.WriteFile(database, bytes.ReplaceAll(data, []byte(wholeValue), []byte(damagedAfter)), 0o600))
}

// cutOff ends a log before the record that has the byte at a place. Each begins with its length in seven bytes, and that of its padding in one.
func cutOff(log []byte, at int) {
	for start := 0; ; {
		length := binary.LittleEndian.Uint64(log[start:])
		end := start + 8 + int(length&^(0xff<<56)) + int(length>>56&7)
		if end > at {
			clear(log[start:])
			return
		}
		start = end
	}
}

// withValue makes a store with many values, the one to damage among them, put by a transaction as the API server does, and some deleted ones.
func withValue(t *testing.T) (dir, want string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "etcd")
	fill(t, dir, 2*pageOfValues)
	run(t, dir, func(client *clientv3.Client) {
		ctx := t.Context()
		_, err := client.Txn(ctx).Then(clientv3.OpTxn(nil, []clientv3.Op{clientv3.OpPut("key 77", wholeValue)}, nil)).Commit()
		require.NoError(t, err)
		_, err = client.Txn(ctx).Else(clientv3.OpPut("never", "put")).Commit()
		require.NoError(t, err)
		_, err = client.Delete(ctx, "key 1", clientv3.WithPrefix())
		require.NoError(t, err)
		_, err = client.Put(ctx, "key 77", "", clientv3.WithIgnoreValue())
		require.NoError(t, err)
		want = content(t, client)
	})
	return dir, want
}

// TestADamagedValueIsMadeAgain has the check of a store that runs find it, and the next one make it again.
func TestADamagedValueIsMadeAgain(t *testing.T) {
	dir, want := withValue(t)
	damageValue(t, dir)
	socket := filepath.Join(t.TempDir(), "etcd.sock")
	checkRunning := func() (err error) {
		s := New(Config{DataDir: dir, Socket: socket, LogLevel: "error", Checker: checker(t, 0), Crashed: true})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		require.NoError(t, s.Run(ctx, func() {
			err = s.CheckValues(ctx)
			cancel()
		}))
		return err
	}
	err := checkRunning()
	require.ErrorIs(t, err, ErrDamagedValue)
	require.ErrorContains(t, err, `"key 77"`)
	require.NoError(t, checkRunning(), "it is made again")
	require.FileExists(t, filepath.Join(dir, "member", "snap", "db.damaged"))
	require.NoError(t, checkRunning())
	require.NoFileExists(t, filepath.Join(dir, "member", "snap", "db.damaged-2"), "and only once")
	run(t, dir, func(client *clientv3.Client) { require.Equal(t, want, content(t, client)) })
}

// TestAValueThatCannotBeReadIsMadeAgain has one that ends etcd.
func TestAValueThatCannotBeReadIsMadeAgain(t *testing.T) {
	dir, want := withValue(t)
	database := filepath.Join(dir, "member", "snap", "db")
	data, err := os.ReadFile(database)
	require.NoError(t, err)
	length := []byte{byte(len(wholeValue))}
	require.NoError(t, os.WriteFile(database, bytes.ReplaceAll(data, append(length, wholeValue...), append([]byte{0xff}, wholeValue...)), 0o600))
	runWith(t, Config{DataDir: dir, Checker: checker(t, 0), Crashed: true}, func(client *clientv3.Client) {
		require.Equal(t, want, content(t, client))
	})
	require.FileExists(t, database+".damaged")
}

// TestValuesOfAStoreWithoutItsWholeLogAreNotTakenForDamaged has a log that was made again, and one whose last changes were lost.
func TestValuesOfAStoreWithoutItsWholeLogAreNotTakenForDamaged(t *testing.T) {
	dir, want := withValue(t)
	log := filepath.Join(dir, "member", "wal", "0000000000000000-0000000000000000.wal")
	data, err := os.ReadFile(log)
	require.NoError(t, err)
	cutOff(data, bytes.Index(data, []byte(wholeValue)))
	require.NoError(t, os.WriteFile(log, data, 0o600))
	err = startError(t, Config{DataDir: dir, Checker: checker(t, exitDamaged), Crashed: true})
	require.ErrorContains(t, err, "changes", "the log does not have what the damaged database has")
	require.NoFileExists(t, filepath.Join(dir, "member", "snap", "db.damaged"))
	for range 2 {
		runWith(t, Config{DataDir: dir, Checker: checker(t, 0), Crashed: true}, func(client *clientv3.Client) {
			require.True(t, want == content(t, client))
		})
		require.NoFileExists(t, filepath.Join(dir, "member", "snap", "db.damaged"))
	}
	require.DirExists(t, filepath.Join(dir, "member.damaged"), "the log is made again")

	database := filepath.Join(dir, "member", "snap", "db")
	damagePages(t, database)
	err = startError(t, Config{DataDir: dir, Checker: checker(t, exitDamaged), Crashed: true})
	require.ErrorContains(t, err, "made from a database")
	require.ErrorContains(t, err, "berth snapshot restore")
	require.NoFileExists(t, database+".damaged")
}
