package disposable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-dev/berth/internal/programs"
	"github.com/berth-dev/berth/up/savedcluster"
)

// baseLife is how long a saved cluster stays that no test uses.
const baseLife = 24 * time.Hour

// base is a saved cluster from which clusters start, because that is faster than from nothing: it has what every cluster has.
type base struct {
	dir, name string
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
	return base{dir: filepath.Join(root, "saved"), name: hex.EncodeToString(hash.Sum(nil)[:8])}, nil
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

// delete deletes the base, which may have been deleted by another process.
func (b base) delete() error {
	store := savedcluster.New(b.dir)
	if _, err := store.Get(b.name); err != nil {
		return nil //nolint:nilerr // it does not exist, or is replaced when it is saved
	}
	return store.Delete(b.name)
}
