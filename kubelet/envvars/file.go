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

// maxEnvFile is the most that is read of an environment file, in bytes: it comes from the Pod, and a variable that
// is larger could not be handed to a process anyway.
const maxEnvFile = 1 << 20

// readFile finds a key in an environment file inside a volume. No link in the volume leads out of it.
func readFile(volume, path, key string) (value string, found bool, err error) {
	handle, err := pathrs.OpenInRoot(volume, path)
	if errors.Is(err, os.ErrNotExist) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("open environment file %q: %w", path, err)
	}
	defer func() { _ = handle.Close() }()
	file, err := pathrs.Reopen(handle, unix.O_RDONLY|unix.O_NONBLOCK) // a pipe of that name may not hang us
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

// parseFile reads lines of NAME='VALUE' until it finds the name. A value may go over several lines and is taken as it
// stands; blank lines and lines that begin with "#" count for nothing, nor does a comment behind a value. A blank
// behind the "=" means the empty value, as in a shell.
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
			return "", false, fmt.Errorf("line %d: a name followed by \"=\" is wanted", number)
		}
		if rest != strings.TrimLeft(rest, " \t") {
			if name == key {
				return "", true, nil
			}
			continue
		}
		rest, ok = strings.CutPrefix(rest, "'")
		if !ok {
			return "", false, fmt.Errorf("line %d: the value has to stand in single quotes", number)
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
			return "", false, fmt.Errorf("line %d: text behind the closing quote", number)
		}
		if name == key {
			return value, true, nil
		}
	}
	return "", false, lines.Err()
}
