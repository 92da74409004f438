package containerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/filelock"
)

// ReleaseAddresses releases the addresses of Pods that no sandbox has, and returns them. The plugin host-local reserves an address by a
// file of that name, with the sandbox's id in it. A plugin that is killed between creating and writing the file leaves one that its
// release does not find; a plugin whose containerd was killed may reserve an address after the release.
//
// The address of a sandbox that runs, starts or is being removed stays: containerd stores a sandbox before it calls the plugin, and
// removes it after the plugin has released the address.
func (c Config) ReleaseAddresses(ctx context.Context) (released []string, err error) {
	reserved, err := c.reservedAddresses()
	if err != nil {
		return nil, fmt.Errorf("find the addresses of no sandbox: %w", err)
	}
	if len(reserved) == 0 {
		return nil, nil
	}
	known, err := c.sandboxIDs(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the addresses of no sandbox: %w", err)
	}
	var orphans []reservation
	for _, one := range reserved {
		if !known[one.sandbox()] {
			orphans = append(orphans, one)
		}
	}
	if len(orphans) == 0 {
		return nil, nil
	}
	lock, err := filelock.Wait(ctx, clock.RealClock{}, filepath.Join(c.addressDir(), "lock")) // which the plugin has while it reserves one
	if err != nil {
		return nil, fmt.Errorf("release the addresses of no sandbox: %w", err)
	}
	defer lock.Close()
	var errs []error
	for _, one := range orphans {
		content, err := os.ReadFile(one.path)
		if err == nil && bytes.Equal(content, one.content) {
			if err = os.Remove(one.path); err == nil {
				released = append(released, filepath.Base(one.path))
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("release an address of no sandbox: %w", err))
		}
	}
	return released, errors.Join(errs...)
}

// reservation is the file by which host-local reserves an address.
type reservation struct {
	path    string
	content []byte
}

// sandbox returns the id of the sandbox that has the address, empty if the file has none.
func (r reservation) sandbox() string {
	id, _, _ := bytes.Cut(r.content, []byte("\n"))
	return string(bytes.TrimSpace(id))
}

// addressesDir is the data directory of host-local, in which each network has a directory of its own.
func (c Config) addressesDir() string { return filepath.Join(c.RunDir, "addresses") }

// addressDir is the directory of the addresses that are reserved in the network of the Pods.
func (c Config) addressDir() string { return filepath.Join(c.addressesDir(), c.Bridge) }

func (c Config) reservedAddresses() ([]reservation, error) {
	entries, err := os.ReadDir(c.addressDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // no Pod has had one yet
	}
	if err != nil {
		return nil, err
	}
	var found []reservation
	for _, entry := range entries {
		if _, err := netip.ParseAddr(entry.Name()); err != nil {
			continue // the lock, or the last address of a range
		}
		path := filepath.Join(c.addressDir(), entry.Name())
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = append(found, reservation{path: path, content: content})
	}
	return found, nil
}
