// Package setup builds the programs of Berth from source for a user, once: from the checkout that a module uses, or else from the modules
// that the Go module proxy has.
package setup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/internal/treecopy"
)

// modulePath is the root module; nested are those that it takes to build all programs, below its directory.
const modulePath = "github.com/berth-dev/berth"

var nested = []string{"containers", "controlplane", "dns", "codepages"}

// Config configures a build.
type Config struct {
	// Dir is a directory of the module that uses Berth, whose go.mod says which version; empty is the current directory.
	Dir string
	// Cache has the programs of each version. Default: berth below the user's cache directory.
	Cache string
	// Output gets the progress.
	Output io.Writer
}

// Programs returns the directory of the programs that were built for the version that the module uses. The error is os.ErrNotExist if
// they have not been built.
func (c Config) Programs(ctx context.Context) (string, error) {
	source, err := c.find(ctx)
	if err != nil {
		return "", err
	}
	dir, err := c.target(source)
	if err != nil {
		return "", err
	}
	_, err = os.Stat(filepath.Join(dir, "berth"))
	return dir, err
}

// Build builds the programs unless they have been built, and returns their directory. Those of a checkout are brought up to date.
func (c Config) Build(ctx context.Context) (_ string, err error) {
	source, err := c.find(ctx)
	if err != nil {
		return "", err
	}
	dir, err := c.target(source)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	lock, err := filelock.Acquire(dir + ".lock")
	if err != nil {
		return "", fmt.Errorf("build Berth's programs: another process does: %w", err)
	}
	defer lock.Close()
	if source.checkout {
		return dir, c.make(ctx, source.Dir, dir, "")
	}
	if _, err := os.Stat(filepath.Join(dir, "berth")); err == nil {
		return dir, nil
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "build-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, removeAll(work)) }()
	tree, made := filepath.Join(work, "source"), filepath.Join(work, "bin")
	if err := c.assemble(ctx, source, tree); err != nil {
		return "", err
	}
	if err := c.make(ctx, tree, made, strings.TrimPrefix(source.Version, "v")); err != nil {
		return "", err
	}
	if err := errors.Join(os.RemoveAll(dir), os.Rename(made, dir)); err != nil {
		return "", fmt.Errorf("build Berth's programs: %w", err)
	}
	return dir, nil
}

// module is what the go command says of a module.
type module struct {
	Path, Version, Dir string
	Main               bool
	Replace            *module
	checkout           bool
}

// find finds the source of the root module.
func (c Config) find(ctx context.Context) (module, error) {
	found, err := c.goJSON(ctx, c.Dir, "list", "-m", "-json", modulePath)
	if err != nil {
		return found, fmt.Errorf("find the source of Berth: %w; run this in a module that requires %s", err, modulePath)
	}
	if found.Replace != nil {
		found = *found.Replace
	}
	if _, err := os.Stat(filepath.Join(found.Dir, "Makefile")); err != nil {
		return found, fmt.Errorf("find the source of Berth: %w", err)
	}
	_, err = os.Stat(filepath.Join(found.Dir, nested[0], "go.mod"))
	found.checkout = err == nil
	if !found.checkout && found.Version == "" {
		return found, fmt.Errorf("find the source of Berth: %s has neither a version nor the directory %s", found.Dir, nested[0])
	}
	return found, nil
}

// target is the directory for the programs.
func (c Config) target(source module) (string, error) {
	if source.checkout {
		return filepath.Join(source.Dir, "bin"), nil
	}
	cache := c.Cache
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find the user's cache directory: %w", err)
		}
		cache = filepath.Join(dir, "berth")
	}
	return filepath.Abs(filepath.Join(cache, source.Version))
}

// assemble puts the modules of one version together, as they are in the repository.
func (c Config) assemble(ctx context.Context, root module, tree string) error {
	if _, err := treecopy.Copy(ctx, root.Dir, tree, nil); err != nil {
		return err
	}
	for _, name := range nested {
		fmt.Fprintf(c.Output, "downloading %s/%s@%s\n", modulePath, name, root.Version)
		// Outside of a module, whose go.mod would be asked for the version.
		part, err := c.goJSON(ctx, os.TempDir(), "mod", "download", "-json", modulePath+"/"+name+"@"+root.Version)
		if err != nil {
			return fmt.Errorf("download the module %s of Berth %s: %w", name, root.Version, err)
		}
		if err := writable(tree); err != nil {
			return err
		}
		if _, err := treecopy.Copy(ctx, part.Dir, filepath.Join(tree, name), nil); err != nil {
			return err
		}
	}
	return writable(tree)
}

// make runs the repository's own build.
func (c Config) make(ctx context.Context, tree, bin, version string) error {
	args := []string{"-C", tree, "build", "BIN=" + bin}
	if version != "" {
		args = append(args, "VERSION="+version, "COMMIT=")
	}
	cmd := exec.CommandContext(ctx, "make", args...)
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off") // each module is built as its go.mod says
	cmd.Stdout, cmd.Stderr = c.Output, c.Output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build Berth's programs: make build: %w", err)
	}
	return nil
}

// goJSON runs a go command and decodes the module that it prints.
func (c Config) goJSON(ctx context.Context, dir string, args ...string) (m module, err error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	var problem strings.Builder
	cmd.Stderr = &problem
	out, err := cmd.Output()
	if err != nil {
		return m, fmt.Errorf("go %s: %w: %s%s", strings.Join(args, " "), err, strings.TrimSpace(problem.String()), downloadError(out))
	}
	return m, json.Unmarshal(out, &m)
}

// downloadError is the error in what `go mod download -json` prints.
func downloadError(out []byte) string {
	var failed struct{ Error string }
	_ = json.Unmarshal(out, &failed) // other commands print none
	return failed.Error
}

// writable lets this user change a copy of the module cache, where all is read-only, and execute its scripts, which modules do not mark as
// programs.
func writable(tree string) error {
	return filepath.WalkDir(tree, func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir(), strings.HasSuffix(path, ".sh"):
			return os.Chmod(path, 0o755)
		}
		return nil
	})
}

func removeAll(dir string) error { return errors.Join(writable(dir), os.RemoveAll(dir)) }
