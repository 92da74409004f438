package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/controlplane/atomicfile"
)

// checkTimeout is how long the check of the database may take, which reads some hundred megabytes a second. A damaged one may never come to an end.
const checkTimeout = 2 * time.Minute

// exitUnknown is how the checker ends if it cannot say whether the database is damaged.
const exitUnknown = 1

var errDamaged = errors.New("its pages do not fit together")

// setAsideDamaged sets the database aside if the checker finds damaged pages in it, or a value of it is damaged, where etcd can make it again:
// the log has every change of a cluster until it is longer than some hundred megabytes. Without, it is an error that says what to do.
func (s *Server) setAsideDamaged(ctx context.Context) error {
	snap := filepath.Join(s.config.DataDir, "member", "snap")
	database := filepath.Join(snap, "db")
	if info, err := os.Stat(database); s.config.Checker == "" || err != nil || info.Size() == 0 {
		return nil // what is no database at all etcd reports
	}
	cause := check(ctx, s.config.Checker, database)
	if cause == nil {
		cause = s.damagedValue(database)
	}
	if cause == nil {
		return nil
	}
	if !errors.Is(cause, errDamaged) && !errors.Is(cause, ErrDamagedValue) {
		klog.ErrorS(cause, "Failed to check etcd's database, although etcd has ended by itself", "file", database)
		return nil // as far as is known it is whole
	}
	if _, err := readComplete(filepath.Join(s.config.DataDir, "member", "wal"), consistentIndex(database)); err != nil {
		return fmt.Errorf("the cluster's database %s is damaged (%w), and cannot be made again from its log (%w): bring back a cluster that was "+
			"saved, with `berth snapshot restore`, or start over with --reset, which deletes this one", database, cause, err)
	}
	// A snapshot would make etcd expect a database that is as new.
	files, err := filepath.Glob(filepath.Join(snap, "*.snap"))
	if err != nil {
		return err
	}
	for _, file := range append(files, database) {
		atomicfile.SetAside(file, cause, "etcd makes its database again from its log; nothing is lost")
	}
	if err := os.Remove(s.suspicionFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// check has a program check the database: see package containers/databasecheck. What a damaged one does to that process is a sign of its
// damage, too.
func check(ctx context.Context, program, database string) error {
	limited, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	cmd := exec.CommandContext(limited, program, "check-database", database)
	cmd.Env = []string{"GOTRACEBACK=none"}
	out, err := cmd.CombinedOutput()
	said, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case limited.Err() != nil:
		return fmt.Errorf("%w: they were not read in %v", errDamaged, checkTimeout)
	case !errors.As(err, &exit) || exit.ExitCode() == exitUnknown:
		return fmt.Errorf("%w: %s", err, said)
	}
	return fmt.Errorf("%w: %s", errDamaged, said)
}

// readComplete reads a log that has everything that was ever committed, and at least as many changes as the database; else it is an error. A
// damaged length looks like an end that was cut off, and a log that was made from a database has not what was in that.
func readComplete(dir string, least uint64) ([]raftpb.Entry, error) {
	state, entries, err := readLog(dir, walpb.Snapshot{})
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) { // an end that was cut off was not acknowledged
		return nil, fmt.Errorf("read it from its beginning: %w", err)
	}
	for i, entry := range entries {
		if entry.Index != uint64(i)+1 {
			return nil, fmt.Errorf("change %d is followed by %d", i, entry.Index)
		}
	}
	last := uint64(len(entries))
	if all := max(state.Commit, least); all > last {
		return nil, fmt.Errorf("it has %d of %d changes", last, all)
	}
	snapshots, err := wal.ValidSnapshotEntries(zap.NewNop(), dir)
	if err != nil {
		return nil, fmt.Errorf("read its snapshots: %w", err)
	}
	for _, snapshot := range snapshots {
		if snapshot.Index > 0 && !slices.ContainsFunc(entries[:min(snapshot.Index, last)], isRequest) {
			return nil, errors.New("it was made from a database, and has only what came after")
		}
	}
	return entries, nil
}

// isRequest reports whether a change is one that a client has requested: not of the members, nor of an election.
func isRequest(entry raftpb.Entry) bool {
	return entry.Type == raftpb.EntryNormal && len(entry.Data) > 0
}
