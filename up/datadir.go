package up

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berth-dev/berth/internal/shellword"
)

// checkDataDir returns an error if another user than root and this one could put files into the data directory, or exchange it:
// it has the keys of the cluster.
func checkDataDir(dir string, self int) error {
	for path := filepath.Clean(dir); ; path = filepath.Dir(path) {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // this user makes it
		}
		if err != nil {
			return fmt.Errorf("check --data-dir: %w", err)
		}
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return nil
		}
		if owner := int(stat.Uid); owner != 0 && owner != self {
			return fmt.Errorf("--data-dir %s: user %d owns %s and could exchange what is below it: choose another directory, or "+
				"give it to root with chown", dir, owner, path)
		}
		const others = 0o022
		// In a directory such as /tmp others can make files, but exchange only their own.
		exempt := info.Mode()&fs.ModeSticky != 0 && path != filepath.Clean(dir) || info.Mode()&fs.ModeSymlink != 0
		if info.Mode().Perm()&others != 0 && !exempt {
			return fmt.Errorf("--data-dir %s: other users can write to %s (mode %o): run chmod go-w %s, or choose another directory",
				dir, path, info.Mode().Perm(), shellword.Quote(path))
		}
		if path == filepath.Dir(path) {
			return nil
		}
	}
}
