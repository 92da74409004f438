package resolvconf

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// The usual files: the machine's own, and the one in which systemd-resolved names the servers behind its stub.
const (
	Path         = "/etc/resolv.conf"
	ResolvedPath = "/run/systemd/resolve/resolv.conf"
)

// Files are the files of a machine that name its servers.
type Files struct {
	// Main is the file that the machine's programs use, usually [Path].
	Main string
	// Resolved is the file of systemd-resolved, usually [ResolvedPath]; it may be empty.
	Resolved string
}

// Config is what a machine's programs use to resolve names.
type Config struct {
	// File names the servers. It is set even if the file does not exist.
	File string
	// Servers are addresses; without any, no names can be resolved.
	Servers           []string
	Searches, Options []string
}

// Read reads the configuration for programs in the machine's own network. A file that does not exist names no server.
func (f Files) Read() (Config, error) { return readFile(f.Main) }

// ReadForOthers reads the configuration for programs in other networks of the machine, which cannot reach servers on its
// loopback: the servers behind the stub of systemd-resolved, and otherwise those of the main file that are not on loopback.
func (f Files) ReadForOthers() (Config, error) {
	config, err := readFile(f.Main)
	if err != nil || !slices.ContainsFunc(config.Servers, isLoopback) {
		return config, err
	}
	if resolved, err := readFile(f.Resolved); err == nil && len(resolved.Servers) > 0 {
		return resolved.without(isLoopback), nil
	}
	return config.without(isLoopback), nil
}

// Without returns the configuration without the given servers.
func (c Config) Without(servers ...string) Config {
	return c.without(func(server string) bool { return slices.Contains(servers, server) })
}

func (c Config) without(drop func(string) bool) Config {
	c.Servers = slices.DeleteFunc(slices.Clone(c.Servers), drop)
	return c
}

// isLoopback reports whether a server is on loopback, as 0.0.0.0 is, too: a connection to it is one to the machine itself.
func isLoopback(server string) bool {
	addr, err := netip.ParseAddr(server)
	return err == nil && (addr.IsLoopback() || addr.Unmap().IsUnspecified())
}

// String is the configuration as the content of a file.
func (c Config) String() string {
	var b strings.Builder
	for _, server := range c.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", server)
	}
	if len(c.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(c.Searches, " "))
	}
	if len(c.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(c.Options, " "))
	}
	return b.String()
}

// readFile reads one file as resolv.conf(5) describes it. Lines that it does not describe are ignored, as resolvers do.
func readFile(path string) (Config, error) {
	config := Config{File: path}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return config, nil
	}
	if err != nil {
		return config, fmt.Errorf("read the machine's name servers: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		line, _, _ = strings.Cut(line, ";")
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			if addr, err := netip.ParseAddr(fields[1]); err == nil {
				config.Servers = append(config.Servers, addr.String()) // in its usual form, by which Without finds it
			}
		case "search", "domain":
			config.Searches = fields[1:]
		case "options":
			config.Options = append(config.Options, fields[1:]...)
		}
	}
	return config, nil
}
