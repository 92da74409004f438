// Package testutil is for tests.
package testutil

import (
	"testing"

	"example.com/module/worker"
)

// Check calls what is used.
func Check(t *testing.T) {
	if worker.Map([]int{1}, func(n int) int { return n })[0] != 1 {
		t.Fatal("wrong")
	}
}
