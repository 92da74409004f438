package sbom

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Module is a Go module at a version, as a program was built from it.
type Module struct{ Path, Version string }

// Program is a file that was built by Go.
type Program struct {
	// Name is its path below the directory of the programs.
	Name string
	// SHA256 is the hexadecimal hash of the file.
	SHA256 string
	// Main is the package that it was built from, GoVersion the toolchain, and Modules the modules with a version, sorted.
	Main, GoVersion string
	Modules         []Module
}

// ReadPrograms returns the programs below dir that Go has built, in the order of their names. Other files are skipped.
func ReadPrograms(dir string) ([]Program, error) {
	var programs []Program
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		program, found, err := readProgram(path, filepath.ToSlash(name))
		if found {
			programs = append(programs, program)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the programs of %s: %w", dir, err)
	}
	if len(programs) == 0 {
		return nil, fmt.Errorf("read the programs of %s: there are none", dir)
	}
	return programs, nil
}

// ReadProgram returns the program that is the file at path, under its base name.
func ReadProgram(path string) (Program, error) {
	program, found, err := readProgram(path, filepath.Base(path))
	if err == nil && !found {
		err = errors.New("it is no program of Go")
	}
	if err != nil {
		return program, fmt.Errorf("read the program %s: %w", path, err)
	}
	return program, nil
}

// readProgram returns the program at path. found is false if Go has not built it, or if it is not executable.
func readProgram(path, name string) (program Program, found bool, err error) {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&0o111 == 0 {
		return program, false, err
	}
	built, err := buildinfo.ReadFile(path)
	if err != nil { // a script, or a program in another language
		return program, false, nil //nolint:nilerr // it is none of Go's
	}
	sum, err := hashFile(path)
	return Program{
		Name: name, SHA256: sum, Main: built.Path, GoVersion: built.GoVersion, Modules: modulesOf(built),
	}, true, err
}

// repository is the path of this repository's module; those of its other modules begin with it.
const repository = "github.com/berth-dev/berth"

// modulesOf returns the modules of a program, those that replace others in place of them.
func modulesOf(built *debug.BuildInfo) []Module {
	var modules []Module
	for _, module := range append([]*debug.Module{&built.Main}, built.Deps...) {
		if module.Replace != nil {
			module = module.Replace
		}
		// A module without a version is this repository itself, as are its own modules where the build has given them the commit's.
		if module.Version != "" && module.Version != "(devel)" && module.Path != repository && !strings.HasPrefix(module.Path, repository+"/") {
			modules = append(modules, Module{Path: module.Path, Version: module.Version})
		}
	}
	slices.SortFunc(modules, compareModules)
	return slices.Compact(modules)
}

func compareModules(a, b Module) int {
	if c := strings.Compare(a.Path, b.Path); c != 0 {
		return c
	}
	return strings.Compare(a.Version, b.Version)
}

// Modules returns the modules of all programs, sorted.
func Modules(programs []Program) []Module {
	var all []Module
	for _, program := range programs {
		all = append(all, program.Modules...)
	}
	slices.SortFunc(all, compareModules)
	return slices.Compact(all)
}

func hashFile(path string) (sum string, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// Options are what a document says of its product.
type Options struct {
	// Name and Version are the product's.
	Name, Version string
	// Created is the time of the document.
	Created time.Time
	// Licenses are the SPDX expressions of modules whose licence is known.
	Licenses map[Module]string
}
