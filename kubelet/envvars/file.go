package envvars

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	pathrs "github.com/cyphar/filepath-securejoin/pathrs-lite"
	"golang.org/x/sys/unix"
)

// maxEnvFile bounds what is read of an environment file, in bytes: the Pod controls its content, and no process could
// receive a larger variable.
const maxEnvFile = 1 << 20

// readFile finds a key in an environment file inside a volume. Symbolic links are not followed out of the volume.
func readFile(volume, path, key string) (value string, found bool, err error) {
	handle, err := pathrs.OpenInRoot(volume, path)
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("open environment file %q: %w", path, err)
	}
	defer func() { _ = handle.Close() }()
	file, err := pathrs.Reopen(handle, unix.O_RDONLY|unix.O_NONBLOCK) // opening a pipe must not block
	if err != nil {
		return "", false, fmt.Errorf("open environment file %q: %w", path, err)
	}
	defer func() { _ = file.Close() }()
	value, found, err = parseFile(io.LimitReader(file, maxEnvFile), key)
	if err != nil {
		return "", false, fmt.Errorf("read environment file %q: %w", path, err)
	}
	return value, found, nil
}

// parseFile reads lines of the form NAME='VALUE' until it finds the name. A value may contain newlines and is used
// verbatim. Blank lines, lines that begin with "#", and comments after a value are ignored. A blank after "=" means the
// empty value, as in a shell.
func parseFile(r io.Reader, key string) (string, bool, error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxEnvFile)
	number := 0
	for lines.Scan() {
		number++
		line := strings.TrimLeft(lines.Text(), " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, ok := strings.Cut(line, "=")
		if !ok || name == "" || strings.TrimRight(name, " \t") != name {
			return "", false, fmt.Errorf("line %d: want a name followed by \"=\"", number)
		}
		if rest != strings.TrimLeft(rest, " \t") {
			if name == key {
				return "", true, nil
			}
			continue
		}
		rest, ok = strings.CutPrefix(rest, "'")
		if !ok {
			return "", false, fmt.Errorf("line %d: the value must be in single quotes", number)
		}
		begin := number
		value, after, closed := strings.Cut(rest, "'")
		for !closed {
			if !lines.Scan() {
				return "", false, fmt.Errorf("line %d: the value has no closing quote", begin)
			}
			number++
			var more string
			more, after, closed = strings.Cut(lines.Text(), "'")
			value += "\n" + more
		}
		if after = strings.TrimLeft(after, " \t"); after != "" && after[0] != '#' {
			return "", false, fmt.Errorf("line %d: text after the closing quote", number)
		}
		if name == key {
			return value, true, nil
		}
	}
	return "", false, lines.Err()
}
