// Package testleak checks that the tests of a package leave no goroutine of a client behind.
package testleak

import (
	"runtime"
	"testing"

	"go.uber.org/goleak"
)

// Verify runs the tests, and fails if goroutines are left afterwards. It is for packages whose tests make clients of kubeconfigs: client-go
// ends the goroutines that reread the certificates of such a client when nothing refers to it any more, which only the garbage
// collector finds out. It does not return.
func Verify(m *testing.M, options ...goleak.Option) { goleak.VerifyTestMain(collected{m}, options...) }

// collected are tests after which the garbage is collected.
type collected struct{ *testing.M }

// Run implements goleak.TestingM.
func (c collected) Run() int {
	defer runtime.GC()
	return c.M.Run()
}
