package disposable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/internal/programs"
	"github.com/berth-dev/berth/up/savedcluster"
)

// baseLife is how long a saved cluster stays that no test uses.
const baseLife = 24 * time.Hour

// classesTimeout is how long a cluster may take from its readiness to its last objects, and classesPeriod how often these are looked for.
const classesTimeout, classesPeriod = 10 * time.Second, 50 * time.Millisecond

// base is a saved cluster from which clusters start, because that is faster than from nothing: it has what every cluster has.
type base struct {
	dir, name string
	args      []string
}

// baseOf returns the base of the programs beside berth, and of flags of `berth up`. It need not exist.
func baseOf(root, berth string, args []string) (base, error) {
	dir, err := programs.DirOf(berth)
	if err != nil {
		return base{}, err
	}
	hash := sha256.New()
	for _, program := range []string{berth, filepath.Join(dir, "berth-controlplane"), filepath.Join(dir, "berth-supervisor"), filepath.Join(dir, "containerd")} {
		program, err := filepath.EvalSymlinks(program)
		if err != nil {
			return base{}, fmt.Errorf("find the programs: %w", err)
		}
		info, err := os.Stat(program)
		if err != nil {
			return base{}, fmt.Errorf("find the programs: %w", err)
		}
		fmt.Fprintln(hash, program, info.Size(), info.ModTime().UnixNano())
	}
	fmt.Fprintf(hash, "%q", args)
	return base{dir: filepath.Join(root, "saved"), name: hex.EncodeToString(hash.Sum(nil)[:8]), args: args}, nil
}

// flags are those of `berth up` that start from the base; none if there is no base yet.
func (b base) flags() []string {
	if _, err := savedcluster.New(b.dir).Get(b.name); err != nil {
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(filepath.Join(b.dir, b.name), now, now) // it is in use; a failure only makes it seem older
	return []string{"--from", b.name, "--snapshots", b.dir}
}

// save makes the base of a cluster that has just started, and deletes those that no test has used for long. That another process does the same
// is no error.
func (b base) save(ctx context.Context, c *Cluster) error {
	store := savedcluster.New(b.dir)
	if _, err := store.Get(b.name); err == nil {
		return nil
	}
	if err := awaitSnapshotClasses(ctx, c, b.args); err != nil {
		return err
	}
	_, err := c.Run(ctx, "snapshot", "save", b.name, "--snapshots", b.dir)
	if _, getErr := store.Get(b.name); getErr == nil {
		err = nil
	}
	all, listErr := store.List()
	errs := []error{err, listErr}
	for _, saved := range all {
		info, err := os.Stat(filepath.Join(b.dir, saved.Name))
		if err == nil && saved.Name != b.name && time.Since(info.ModTime()) > baseLife {
			errs = append(errs, store.Delete(saved.Name))
		}
	}
	return errors.Join(errs...)
}

// awaitSnapshotClasses waits until a cluster has all objects that every cluster has: the last ones are made when it is ready already. Without
// them each start from the base would make them. It gives up after a while.
func awaitSnapshotClasses(ctx context.Context, c *Cluster, args []string) error {
	if slices.ContainsFunc(args, func(arg string) bool { return arg == apiOnlyFlag || strings.Contains(arg, "snapshots") }) {
		return nil
	}
	tries, cancel := context.WithTimeout(ctx, classesTimeout)
	defer cancel()
	err := wait.PollUntilContextCancel(tries, classesPeriod, true, func(ctx context.Context) (bool, error) {
		out, err := c.Run(ctx, "kubectl", "get", "--output", "name",
			"volumesnapshotclasses.snapshot.storage.k8s.io,volumegroupsnapshotclasses.groupsnapshot.storage.k8s.io")
		return err == nil && strings.Count(out, "\n") == 2, nil
	})
	if ctx.Err() == nil {
		return nil //nolint:nilerr // the base is good without them
	}
	return err
}

// delete deletes the base, which may have been deleted by another process.
func (b base) delete() error {
	store := savedcluster.New(b.dir)
	if _, err := store.Get(b.name); err != nil {
		return nil //nolint:nilerr // it does not exist, or is replaced when it is saved
	}
	return store.Delete(b.name)
}
