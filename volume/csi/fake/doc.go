// Package fake is a CSI driver for tests: it serves on a real socket, makes real bind mounts, holds its caller to the
// order of calls that CSI prescribes, and fails, hangs or loses its answer on demand.
package fake
