package etcd

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.uber.org/zap"
)

// run runs the store in the directory while do does something with it.
func run(t *testing.T, dir string, do func(client *clientv3.Client)) {
	t.Helper()
	runWith(t, Config{DataDir: dir}, do)
}

// runWith is run with the rest of a configuration.
func runWith(t *testing.T, config Config, do func(client *clientv3.Client)) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "etcd.sock")
	config.Socket, config.LogLevel = socket, "error"
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- New(config).Run(ctx, func() { close(ready) })
	}()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	select {
	case <-ready:
	case <-time.After(time.Minute):
		t.Fatal("the store is not ready")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{Endpoint(socket)}, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer client.Close()
	do(client)
}

// TestAFirstStartThatWasCutShortGoesOn has the log that etcd makes first, before it has committed that it is a member.
func TestAFirstStartThatWasCutShortGoesOn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etcd")
	run(t, dir, func(*clientv3.Client) {}) // for the metadata of a log
	logs := filepath.Join(dir, "member", "wal")
	old, err := wal.OpenForRead(zap.NewNop(), logs, walSnapshot)
	require.NoError(t, err)
	metadata, _, _, err := old.ReadAll()
	require.NoError(t, err)
	_ = old.Close() // it syncs a file that it has not opened
	for _, database := range []string{"none", "empty", "without keys"} {
		t.Run(database, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "etcd")
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "member", "snap"), 0o700))
			log, err := wal.Create(zap.NewNop(), filepath.Join(dir, "member", "wal"), metadata)
			require.NoError(t, err)
			require.NoError(t, log.Close())
			db := filepath.Join(dir, "member", "snap", "db")
			switch database {
			case "empty":
				require.NoError(t, os.WriteFile(db, nil, 0o600))
			case "without keys":
				makeDatabase(t, db, nil)
			}
			run(t, dir, func(client *clientv3.Client) {
				_, err := client.Put(t.Context(), "key", "value")
				require.NoError(t, err)
			})
			run(t, dir, func(client *clientv3.Client) {
				response, err := client.Get(t.Context(), "key")
				require.NoError(t, err)
				require.Len(t, response.Kvs, 1, "what is acknowledged is kept")
			})
		})
	}
}

// TestDataAreNeverTakenForAStartThatWasCutShort has a log that is lost, and a database that is not.
func TestDataAreNeverTakenForAStartThatWasCutShort(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, member string){
		"a database with keys": func(t *testing.T, member string) { makeDatabase(t, filepath.Join(member, "snap", "db"), []byte("key")) },
		"a database that cannot be read": func(t *testing.T, member string) {
			require.NoError(t, os.WriteFile(filepath.Join(member, "snap", "db"), []byte("damaged"), 0o600))
		},
		"a snapshot": func(t *testing.T, member string) {
			require.NoError(t, os.WriteFile(filepath.Join(member, "snap", "1-1.snap"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			member := filepath.Join(dir, "member")
			require.NoError(t, os.MkdirAll(filepath.Join(member, "snap"), 0o700))
			log, err := wal.Create(zap.NewNop(), filepath.Join(member, "wal"), []byte("metadata"))
			require.NoError(t, err)
			require.NoError(t, log.Close())
			damage(t, member)
			require.NoError(t, removeUnfinished(dir))
			require.DirExists(t, member)
		})
	}
	t.Run("a log that cannot be read", func(t *testing.T) {
		dir := t.TempDir()
		logs := filepath.Join(dir, "member", "wal")
		require.NoError(t, os.MkdirAll(logs, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(logs, "0000000000000000-0000000000000000.wal"), []byte("damaged, and long enough"), 0o600))
		require.NoError(t, removeUnfinished(dir))
		require.DirExists(t, logs)
	})
}

// walSnapshot is where a log begins.
var walSnapshot walpb.Snapshot

// makeDatabase makes a database as etcd's, with a key if there is one.
func makeDatabase(t *testing.T, path string, key []byte) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		keys, err := tx.CreateBucket([]byte("key"))
		if err != nil || key == nil {
			return err
		}
		return keys.Put(key, []byte("value"))
	}))
	require.NoError(t, db.Close())
}
