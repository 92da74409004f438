//go:build !amd64

package vm

// tscKHz is 0: this machine's processors have no time stamp counter of that kind.
func tscKHz() uint64 { return 0 }
