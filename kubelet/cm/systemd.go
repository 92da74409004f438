package cm

import (
	"fmt"
	"path"
	"strings"

	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/manager"
)

// ensureSlice makes systemd create a slice, and all above it, and sets its limits.
func ensureSlice(name cgroupName, limits Limits, unified bool) error {
	resources := limits.resources(unified)
	group, err := sliceManager(name, resources)
	if err != nil {
		return err
	}
	if err := group.Apply(-1); err != nil { // -1: no process joins
		return fmt.Errorf("create slice %q with systemd: %w", name.systemd(), err)
	}
	if err := group.Set(resources); err != nil {
		return fmt.Errorf("set limits of slice %q with systemd: %w", name.systemd(), err)
	}
	return nil
}

// setSlice sets the limits of an existing slice, by its own name.
func setSlice(slice string, limits Limits, unified bool) error {
	resources := limits.resources(unified)
	parent := "-.slice"
	if i := strings.LastIndexByte(strings.TrimSuffix(slice, ".slice"), '-'); i > 0 {
		parent = slice[:i] + ".slice"
	}
	group, err := manager.New(&cgroupslib.Cgroup{Name: slice, Parent: parent, Systemd: true, Resources: resources})
	if err != nil {
		return fmt.Errorf("connect to systemd for slice %q: %w", slice, err)
	}
	if err := group.Set(resources); err != nil {
		return fmt.Errorf("set limits of slice %q with systemd: %w", slice, err)
	}
	return nil
}

// removeSlice stops a slice.
func removeSlice(name cgroupName) error {
	group, err := sliceManager(name, &cgroupslib.Resources{SkipDevices: true})
	if err != nil {
		return err
	}
	if err := group.Destroy(); err != nil {
		return fmt.Errorf("stop slice %q with systemd: %w", name.systemd(), err)
	}
	return nil
}

// sliceConfig names a slice and its parent for the library.
func sliceConfig(name cgroupName, resources *cgroupslib.Resources) *cgroupslib.Cgroup {
	dir, slice := path.Split(name.systemd())
	parent := path.Base(dir)
	if parent == "/" {
		parent = "-.slice"
	}
	return &cgroupslib.Cgroup{Name: slice, Parent: parent, Systemd: true, Resources: resources}
}

func sliceManager(name cgroupName, resources *cgroupslib.Resources) (cgroupslib.Manager, error) {
	group, err := manager.New(sliceConfig(name, resources))
	if err != nil {
		return nil, fmt.Errorf("connect to systemd for slice %q: %w", name.systemd(), err)
	}
	return group, nil
}
