package imagestore

import (
	"os"
	"testing"

	"github.com/containerd/log"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// containerd's content store warns about file systems without fs-verity, once a store.
	if err := log.SetLevel("error"); err != nil {
		os.Exit(2)
	}
	goleak.VerifyTestMain(m)
}
