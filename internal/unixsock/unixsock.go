// Package unixsock listens on unix sockets and connects to them wherever they lie: an address of the kernel holds a path of
// 107 bytes, and a directory may be deeper than that.
package unixsock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// maxPath is how long a path may be in an address: sun_path has 108 bytes, of which one ends it.
const maxPath = 107

// Listen listens on a socket at this path. Like net.Listen, it fails where a file is already, and takes the socket away when
// it is closed.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	var listener *net.UnixListener
	err := withShortPath(path, func(short string) error {
		l, err := (&net.ListenConfig{}).Listen(ctx, "unix", short)
		if err == nil {
			listener = l.(*net.UnixListener)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if len(path) <= maxPath {
		return listener, nil
	}
	listener.SetUnlinkOnClose(false) // by a path that is no more
	return &longListener{UnixListener: listener, remove: sync.OnceFunc(func() { _ = os.Remove(path) })}, nil
}

// longListener removes its socket when it is closed.
type longListener struct {
	*net.UnixListener
	remove func()
}

// Close implements net.Listener.
func (l *longListener) Close() error {
	l.remove()
	return l.UnixListener.Close()
}

// Dial connects to the socket at this path.
func Dial(ctx context.Context, path string) (connection net.Conn, err error) {
	err = withShortPath(path, func(short string) error {
		connection, err = (&net.Dialer{}).DialContext(ctx, "unix", short)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return connection, nil
}

// withShortPath calls use with a path of the same file that fits a socket address, and is valid until use returns: a long
// path is replaced by one through its opened directory.
func withShortPath(path string, use func(short string) error) error {
	if len(path) <= maxPath {
		return use(path)
	}
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open its directory: %w", err)
	}
	defer func() { _ = unix.Close(dir) }()
	short := fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path))
	if len(short) > maxPath {
		return fmt.Errorf("the socket's name %q is too long: at most %d bytes fit", filepath.Base(path),
			maxPath-(len(short)-len(filepath.Base(path))))
	}
	return use(short)
}

// Replace is Listen for a path at which an earlier process may have left a file, which it removes.
func Replace(ctx context.Context, path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier process: %w", err)
	}
	return Listen(ctx, path)
}
