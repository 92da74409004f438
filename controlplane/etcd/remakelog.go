package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/controlplane/atomicfile"
)

// damageOfLog returns what is wrong with the log, and nil if nothing is or the cause is the machine's. A damaged length looks like an end
// that was cut off, from where on etcd leaves the log out, and never becomes ready: such a log ends before what the database has.
func (s *Server) damageOfLog() error {
	member := filepath.Join(s.config.DataDir, "member")
	if !wal.Exist(filepath.Join(member, "wal")) {
		return nil
	}
	last, err := lastChange(filepath.Join(member, "wal"))
	if errors.As(err, new(*fs.PathError)) || errors.As(err, new(*os.SyscallError)) || atomicfile.IsPassing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if has := consistentIndex(filepath.Join(member, "snap", "db")); last < has {
		return fmt.Errorf("the log ends with change %d, and the database has %d", last, has)
	}
	return nil
}

// lastChange returns the index of the log's last change.
func lastChange(dir string) (uint64, error) {
	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), dir)
	if err != nil {
		return 0, err
	}
	if len(snapshots) == 0 {
		return 0, nil
	}
	newest := snapshots[len(snapshots)-1]
	_, entries, err := readLog(dir, newest)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return 0, err
	}
	if len(entries) == 0 {
		return newest.Index, nil
	}
	return entries[len(entries)-1].Index, nil
}

// consistentIndex returns the index of the last change that the database has; 0 if it cannot be read.
func consistentIndex(path string) (index uint64) {
	_ = view(path, func(tx *bbolt.Tx) {
		if meta := tx.Bucket([]byte("meta")); meta != nil {
			if value := meta.Get([]byte("consistent_index")); len(value) == 8 {
				index = binary.BigEndian.Uint64(value)
			}
		}
	})
	return index
}

// remakeLog replaces the member's directory with one whose log begins at what the database has, and keeps the old one. The database has
// everything after an orderly end, and at most a tenth of a second less than the log after a crash. If the database is not known to be
// whole, it is an error that says what to do, and nothing is changed.
func (s *Server) remakeLog(ctx context.Context, cause error) error {
	if s.config.Checker == "" {
		return fmt.Errorf("etcd's log in %s is damaged: %w", s.config.DataDir, cause)
	}
	member := filepath.Join(s.config.DataDir, "member")
	database := filepath.Join(member, "snap", "db")
	if err := check(ctx, s.config.Checker, database); err != nil {
		return fmt.Errorf("etcd's log is damaged (%w), and cannot be made again from the database %s (%w): bring back a cluster that was "+
			"saved, with `berth snapshot restore`, or start over with --reset, which deletes this one", cause, database, err)
	}
	// The new member is made below the name that the old one then has: the two change places in one step.
	aside, err := newAside(member)
	if err != nil {
		return err
	}
	err = snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: database, SkipHashCheck: true, Name: memberName, OutputDataDir: aside, PeerURLs: []string{memberURL},
		InitialCluster: memberName + "=" + memberURL, InitialClusterToken: "etcd-cluster",
	})
	if err == nil {
		err = exchange(filepath.Join(aside, "member"), member)
	}
	if err != nil {
		return fmt.Errorf("make etcd's damaged log (%w) again from its database: %w", cause, err)
	}
	klog.ErrorS(cause, "Set aside a damaged state file", "file", filepath.Join(member, "wal"), "aside", aside,
		"consequence", "etcd's log is made again from its database: after a crash, changes of the last moments before it may be missing",
		"remedy", "check the disk, and delete the directory set aside")
	return nil
}

// newAside returns a free path that says that what is there was damaged.
func newAside(path string) (string, error) {
	for aside := range atomicfile.AsideNames(path) {
		if _, err := os.Lstat(aside); errors.Is(err, os.ErrNotExist) {
			return aside, nil
		} else if err != nil {
			return "", err
		}
	}
	return "", atomicfile.NoAsideError(path)
}

// exchange has two directories change their places, after all that is on their disk is written.
func exchange(a, b string) error {
	dir, err := os.Open(filepath.Dir(b))
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("write all of %s: %w", dir.Name(), err)
	}
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s and %s: %w", a, b, err)
	}
	return dir.Sync()
}
