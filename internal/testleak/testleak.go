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
func Verify(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(collected{M: m, options: options}, options...)
}

// collections are how often the garbage is collected: a goroutine that ends late keeps its client past the first time.
const collections = 5

// collected are tests after which the garbage is collected.
type collected struct {
	*testing.M
	options []goleak.Option
}

// Run implements goleak.TestingM.
func (c collected) Run() int {
	code := c.M.Run()
	for range collections {
		runtime.GC()
		if goleak.Find(c.options...) == nil { // waits up to half a second for goroutines that are about to end
			break
		}
	}
	return code
}
