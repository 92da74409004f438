package etcd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
)

// removeUnfinished removes what a first start has left that was cut short, by the end of the process or of the machine's power: a log in which
// nothing is committed, not even that the member is one. etcd takes the log for that of a member that has joined, and this one would
// wait for ever for others to elect it. Nothing was ever acknowledged then. What cannot be read is left to etcd, which says why.
func removeUnfinished(dataDir string) error {
	member := filepath.Join(dataDir, "member")
	log := filepath.Join(member, "wal")
	// The log comes last: it is read as a whole, and at all but a first start the database is enough.
	if !wal.Exist(log) || hasData(filepath.Join(member, "snap")) || hasCommitted(log) {
		return nil
	}
	if err := os.RemoveAll(member); err != nil {
		return fmt.Errorf("remove the etcd data of a start that was cut short: %w", err)
	}
	return nil
}

// hasCommitted reports whether the log has, or may have, anything that is committed.
func hasCommitted(dir string) bool {
	state, _, err := readLog(dir, walpb.Snapshot{})
	return err != nil || state.Commit > 0
}

// readLog returns what the log has after a snapshot; an empty one for its beginning.
func readLog(dir string, after walpb.Snapshot) (raftpb.HardState, []raftpb.Entry, error) {
	log, err := wal.OpenForRead(zap.NewNop(), dir, after)
	if err != nil {
		return raftpb.HardState{}, nil, err
	}
	defer log.Close()
	_, state, entries, err := log.ReadAll()
	return state, entries, err
}

// hasData reports whether the database has, or may have, keys, or there are snapshots.
func hasData(dir string) bool {
	snapshots, err := filepath.Glob(filepath.Join(dir, "*.snap"))
	if err != nil || len(snapshots) > 0 {
		return true
	}
	path := filepath.Join(dir, "db")
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() == 0 {
		return false
	}
	if err != nil {
		return true
	}
	found := false
	err = view(path, func(tx *bbolt.Tx) {
		if keys := tx.Bucket([]byte("key")); keys != nil {
			first, _ := keys.Cursor().First()
			found = first != nil
		}
	})
	return err != nil || found
}

// view reads a database that nothing has open.
func view(path string, read func(tx *bbolt.Tx)) (err error) {
	// bbolt panics on a damaged page, and the kernel ends whoever reads one that the disk does not have any more.
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("read the database %s: %v", path, cause)
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error { read(tx); return nil })
}
