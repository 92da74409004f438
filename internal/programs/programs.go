package programs

import (
	"fmt"
	"os"
	"path/filepath"
)

// installed is where a package has the programs, from the directory of berth: /usr/libexec/berth for /usr/bin/berth (Filesystem
// Hierarchy Standard 3.0, section 4.7).
const installed = "../libexec/berth"

// marker is the program whose presence shows that a directory has the programs: a cluster cannot run without.
const marker = "berth-supervisor"

// Dir returns the directory of the programs: that of this program, or ../libexec/berth from there if only that has them.
func Dir() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find the directory of this program: %w", err)
	}
	return dirOf(self), nil
}

// DirOf is Dir for the program berth at a path, which may be a symbolic link.
func DirOf(berth string) (string, error) {
	program, err := filepath.EvalSymlinks(berth)
	if err != nil {
		return "", fmt.Errorf("find the directory of %s's programs: %w", berth, err)
	}
	return dirOf(program), nil
}

func dirOf(self string) string {
	beside := filepath.Dir(self)
	if has(beside) {
		return beside
	}
	if dir := filepath.Join(beside, installed); has(dir) {
		return dir
	}
	return beside
}

func has(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, marker))
	return err == nil && info.Mode().IsRegular()
}
