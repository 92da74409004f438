package packaging

import (
	"debug/elf"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// libraries are the shared libraries that programs need.
type libraries struct {
	// names are those in the programs, such as libc.so.6, sorted.
	names []string
	// glibc is the newest version of glibc's symbols, such as 2.34; empty if no program uses glibc.
	glibc string
}

// needed returns the libraries of the programs among the files.
func needed(files []file) (libraries, error) {
	var all libraries
	for _, f := range files {
		if f.source == "" || f.mode&0o111 == 0 {
			continue
		}
		if err := all.add(f.source); err != nil {
			return all, fmt.Errorf("read the libraries of %s: %w", f.source, err)
		}
	}
	slices.Sort(all.names)
	all.names = slices.Compact(all.names)
	return all, nil
}

func (l *libraries) add(path string) error {
	program, err := elf.Open(path)
	var format *elf.FormatError
	if errors.As(err, &format) { // a script
		return nil
	}
	if err != nil {
		return err
	}
	defer program.Close()
	names, err := program.ImportedLibraries()
	if err != nil {
		return err
	}
	l.names = append(l.names, names...)
	needs, err := program.DynamicVersionNeeds()
	if errors.Is(err, elf.ErrNoSymbols) || program.Section(".gnu.version_r") == nil {
		return nil
	}
	if err != nil {
		return err
	}
	for _, library := range needs {
		for _, symbol := range library.Needs {
			if version, ok := strings.CutPrefix(symbol.Dep, "GLIBC_"); ok && newer(version, l.glibc) {
				l.glibc = version
			}
		}
	}
	return nil
}

// newer reports whether version a is newer than b; any is newer than none.
func newer(a, b string) bool {
	return slices.Compare(numbers(a), numbers(b)) > 0
}

func numbers(version string) (all []int) {
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil // GLIBC_PRIVATE, ABI markers
		}
		all = append(all, n)
	}
	return all
}

// debDepends returns the packages of Debian that the libraries are in, and those whose programs Berth starts.
func (l libraries) debDepends() ([]string, error) {
	depends := []string{"e2fsprogs", "iproute2", "iptables", "kmod", "mount", "nftables", "init-system-helpers (>= 1.54~)"}
	for _, name := range l.names {
		switch name {
		case "libc.so.6", "libpthread.so.0", "libresolv.so.2", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1":
			depends = append(depends, "libc6 (>= "+l.glibc+")")
		case "libseccomp.so.2":
			depends = append(depends, "libseccomp2 (>= 2.5.0)")
		default:
			return nil, fmt.Errorf("a program needs %s: say in packaging/depends.go which package has it", name)
		}
	}
	slices.Sort(depends)
	return slices.Compact(depends), nil
}
