package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/controlplane/atomicfile"
)

// ErrDamagedValue is the cause if a value of the database is not one that was written. The database has no checksums of values, but its
// log has, and has each value, too.
var ErrDamagedValue = errors.New("a value of etcd's database is not the one that was written")

// pageOfValues is how many values are read from the store at a time.
const pageOfValues = 500

// CheckValues compares all present values of the store with what its log says was written; it must be ready. If one differs it is an
// ErrDamagedValue: a store that is started as one that has crashed then makes the database again. Without the whole log, or without a Checker,
// nothing is known and the error is nil. It reads as much as the store and its log have: call it only if there is a sign of damage.
func (s *Server) CheckValues(ctx context.Context) error {
	if s.config.Checker == "" {
		return nil
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{Endpoint(s.config.Socket)}, Context: ctx, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("check the store's values: %w", err)
	}
	defer client.Close()
	newest, err := client.Get(ctx, "\x00", clientv3.WithFromKey(), clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("check the store's values: %w", err)
	}
	// After the revision is known: the log has all that led to it.
	written, err := readWritten(filepath.Join(s.config.DataDir, "member", "wal"), 0)
	if err != nil {
		klog.V(2).InfoS("Values of etcd cannot be compared with its log", "reason", err)
		return nil
	}
	err = eachValue(ctx, client, newest.Header.Revision, written.check)
	if errors.Is(err, ErrDamagedValue) {
		return errors.Join(err, atomicfile.Write(s.suspicionFile(), []byte(err.Error()+"\n")))
	}
	return err
}

// suspicionFile says why the next store has to compare the database with its log, which takes seconds and as much memory as the log has.
func (s *Server) suspicionFile() string { return s.config.Socket + ".suspicion" }

// eachValue calls check for each value of a revision, up to its first error.
func eachValue(ctx context.Context, client *clientv3.Client, revision int64, check func(*mvccpb.KeyValue) error) error {
	for from := "\x00"; ; {
		page, err := client.Get(ctx, from, clientv3.WithFromKey(), clientv3.WithLimit(pageOfValues), clientv3.WithRev(revision))
		if err != nil {
			return fmt.Errorf("check the store's values: %w", err)
		}
		for _, value := range page.Kvs {
			if err := check(value); err != nil {
				return err
			}
		}
		if !page.More {
			return nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

// damagedValue reads a database that nothing has open, and returns an ErrDamagedValue if one of its values, present or past, cannot be read or,
// with a suspicion, is not one of its log's. If that cannot be known the error is nil.
func (s *Server) damagedValue(database string) error {
	check := func(*mvccpb.KeyValue) error { return nil }
	if _, err := os.Lstat(s.suspicionFile()); err == nil {
		if written, err := readWritten(filepath.Join(s.config.DataDir, "member", "wal"), consistentIndex(database)); err == nil {
			check = written.check
		}
	}
	var damage error
	err := view(database, func(tx *bbolt.Tx) {
		if keys := tx.Bucket([]byte("key")); keys != nil {
			damage = eachStored(keys, check)
		}
	})
	if damage == nil && err != nil {
		klog.V(2).InfoS("Values of etcd's database cannot be read", "reason", err)
	}
	return damage
}

// eachStored calls check for each value, present or past, up to its first error; what it gets is valid during the call.
func eachStored(keys *bbolt.Bucket, check func(*mvccpb.KeyValue) error) error {
	var value mvccpb.KeyValue
	return keys.ForEach(func(revision, data []byte) error {
		if len(revision) < revisionBytes {
			return fmt.Errorf("%w: that of revision %x", ErrDamagedValue, revision)
		}
		value.Key, value.Value = value.Key[:0], value.Value[:0] // their memory is used again
		if err := value.Unmarshal(data); err != nil {
			return fmt.Errorf("%w: that of revision %d (%w)", ErrDamagedValue, binary.BigEndian.Uint64(revision), err)
		}
		if len(revision) > revisionBytes { // it was deleted then
			return nil
		}
		return check(&value)
	})
}

// revisionBytes is the size of a key of etcd's database, which is a revision: two numbers with a mark between them. That of a deletion
// has one more.
const revisionBytes = 8 + 1 + 8

// written is what a log says was written: a hash of each key with its value.
type written struct {
	seed   maphash.Seed
	hashes map[uint64]struct{}
}

// readWritten reads a log that has everything, and at least as many changes as the database.
func readWritten(dir string, least uint64) (*written, error) {
	entries, err := readComplete(dir, least)
	if err != nil {
		return nil, err
	}
	w := &written{maphash.MakeSeed(), make(map[uint64]struct{}, len(entries))}
	for _, entry := range entries {
		var request etcdserverpb.InternalRaftRequest
		if !isRequest(entry) || request.Unmarshal(entry.Data) != nil {
			continue
		}
		w.add(request.Put)
		w.addAll(request.Txn)
	}
	return w, nil
}

func (w *written) addAll(txn *etcdserverpb.TxnRequest) {
	for _, operations := range [][]*etcdserverpb.RequestOp{txn.GetSuccess(), txn.GetFailure()} {
		for _, operation := range operations {
			w.add(operation.GetRequestPut())
			w.addAll(operation.GetRequestTxn())
		}
	}
}

func (w *written) add(put *etcdserverpb.PutRequest) {
	if put != nil {
		w.hashes[w.hash(put.Key, put.Value)] = struct{}{}
	}
}

func (w *written) hash(key, value []byte) uint64 {
	var hash maphash.Hash
	hash.SetSeed(w.seed)
	_, _ = hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(key)))) // it never fails
	_, _ = hash.Write(key)
	_, _ = hash.Write(value)
	return hash.Sum64()
}

func (w *written) check(value *mvccpb.KeyValue) error {
	if _, ok := w.hashes[w.hash(value.Key, value.Value)]; !ok {
		return fmt.Errorf("%w: that of the key %q, revision %d", ErrDamagedValue, value.Key, value.ModRevision)
	}
	return nil
}
