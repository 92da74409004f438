package eviction

import (
	"fmt"
	"slices"
)

// Layout says which file systems the node has beside that of the kubelet's directory.
type Layout struct {
	// Images says that the images have one of their own, Containers that the writable layers have another one than the images:
	// that of the kubelet's directory.
	Images, Containers bool
}

// String describes the layout.
func (l Layout) String() string {
	switch {
	case l.Images && l.Containers:
		return "images have a file system of their own"
	case l.Images:
		return "images and containers have a file system of their own"
	}
	return "one file system"
}

// split reports whether writable layers are with the kubelet's directory, and images elsewhere.
func (l Layout) split() bool { return l.Images && l.Containers }

// thresholds returns the thresholds with those of the file system of writable layers, which are those of the file system that
// it is part of, whatever is configured.
func (l Layout) thresholds(configured []Threshold) []Threshold {
	from := map[Signal]Signal{NodeFsAvailable: ContainerFsAvailable, NodeFsInodesFree: ContainerFsInodesFree}
	if l.Images && !l.Containers {
		from = map[Signal]Signal{ImageFsAvailable: ContainerFsAvailable, ImageFsInodesFree: ContainerFsInodesFree}
	}
	var out []Threshold
	for _, t := range configured {
		if t.Signal == ContainerFsAvailable || t.Signal == ContainerFsInodesFree {
			continue
		}
		out = append(out, t)
	}
	for _, t := range slices.Clone(out) {
		if signal, ok := from[t.Signal]; ok {
			t.Signal = signal
			out = append(out, t)
		}
	}
	return out
}

// Warnings names the configured thresholds that have no effect.
func (c Config) Warnings() []string {
	var out []string
	for _, field := range []struct {
		name   string
		values map[string]string
	}{{"evictionHard (--eviction-hard)", c.Hard}, {"evictionSoft (--eviction-soft)", c.Soft}} {
		for _, signal := range []Signal{ContainerFsAvailable, ContainerFsInodesFree} {
			if text, ok := field.values[string(signal)]; ok {
				out = append(out, fmt.Sprintf("%s %s<%s: no effect: the thresholds of the containers' file system are those of nodefs, "+
					"or of imagefs if it is the images' file system", field.name, signal, text))
			}
		}
	}
	return out
}

// reclaims says what node-level reclaim for the signal removes before a Pod is evicted.
func (l Layout) reclaims(signal Signal) (containers, images bool) {
	if !signal.isDisk() {
		return false, false
	}
	ofImages := signal == ImageFsAvailable || signal == ImageFsInodesFree
	ofNode := signal == NodeFsAvailable || signal == NodeFsInodesFree
	switch {
	case l.split():
		return !ofImages, ofImages
	case l.Images && ofNode:
		return false, false // nothing of the container runtime is on that file system
	}
	return true, true
}

// parts says which parts of a Pod's usage are on the signal's file system.
func (l Layout) parts(signal Signal) diskParts {
	ofImages := signal == ImageFsAvailable || signal == ImageFsInodesFree
	ofNode := signal == NodeFsAvailable || signal == NodeFsInodesFree
	switch {
	case !l.Images:
		return diskParts{layers: true, logs: true, volumes: true}
	case l.split():
		return diskParts{layers: !ofImages, logs: !ofImages, volumes: !ofImages}
	case ofNode:
		return diskParts{logs: true, volumes: true}
	}
	return diskParts{layers: true}
}

// diskParts are the parts of a Pod's disk usage.
type diskParts struct{ layers, logs, volumes bool }
