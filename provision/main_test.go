package provision_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/internal/testleak"
)

func TestMain(m *testing.M) {
	// The fake API server panics when a watcher does not keep up; what gives way to claims is written all at once then.
	watch.DefaultChanSize = 10_000
	testleak.Verify(m)
}
