// Package fake is a CSI driver for tests: it serves on a real socket, makes real bind mounts, checks the order of calls
// that CSI prescribes, and fails, hangs or loses responses as planned by the test.
package fake
