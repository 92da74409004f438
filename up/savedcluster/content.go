package savedcluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"

	"github.com/berth-dev/berth/up/isolate"
	"github.com/berth-dev/berth/up/removal"
)

const (
	// WorkName is what Replace and Copy have in a data directory that is a file system of its own, until they have finished.
	WorkName = ".restore" + partial
	// stateName is the file without which a data directory with other files is none of berth.
	stateName = "cluster.json"
	// lockName is the lock of the data directory, which the caller has.
	lockName = isolate.LockName
)

// isMounted reports whether a data directory is a file system of its own, or mounted otherwise: it cannot be renamed or replaced, and what
// is beside it is on another file system.
func isMounted(dataDir string) (bool, error) {
	mounted, err := mountinfo.Mounted(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find out whether %s is mounted: %w", dataDir, err)
	}
	return mounted, nil
}

// replaceContent puts what is in made into the data directory, in the place of its former content, which it puts at aside. After an error
// the former content is back. The state is what leaves first and comes last, so that a data directory in which this was interrupted is
// none that a cluster can start in.
func replaceContent(made, dataDir, aside string) (err error) {
	var done moves
	defer func() {
		if err != nil {
			err = errors.Join(err, done.undo())
		}
	}()
	if err := os.Mkdir(aside, 0o700); err != nil {
		return err
	}
	former, err := contentOf(dataDir)
	if err != nil {
		return err
	}
	for _, name := range former {
		if err := done.move(filepath.Join(dataDir, name), filepath.Join(aside, name)); err != nil {
			return err
		}
	}
	next, err := contentOf(made)
	if err != nil {
		return err
	}
	slices.Reverse(next)
	for _, name := range next {
		if err := done.move(filepath.Join(made, name), filepath.Join(dataDir, name)); err != nil {
			return err
		}
	}
	return nil
}

// contentOf returns the names of what a data directory has of a cluster, the state first.
func contentOf(dataDir string) (names []string, err error) {
	entries, err := os.ReadDir(dataDir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		switch name := entry.Name(); name {
		case lockName, WorkName, removal.LostAndFound:
		case stateName:
			names = slices.Insert(names, 0, name)
		default:
			names = append(names, name)
		}
	}
	return names, nil
}

// moves are files and directories that were renamed.
type moves []struct{ from, to string }

func (m *moves) move(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	*m = append(*m, struct{ from, to string }{from, to})
	return nil
}

func (m *moves) undo() error {
	var errs []error
	for _, done := range slices.Backward(*m) {
		errs = append(errs, os.Rename(done.to, done.from))
	}
	return errors.Join(errs...)
}
