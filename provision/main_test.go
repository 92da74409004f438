package provision_test

import (
	"testing"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/watch"
)

func TestMain(m *testing.M) {
	// The fake API server panics when a watcher does not keep up; what gives way to claims is written all at once then.
	watch.DefaultChanSize = 10_000
	goleak.VerifyTestMain(m)
}
