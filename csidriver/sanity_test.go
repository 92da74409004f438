package csidriver_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
)

// TestSanity runs the whole conformance suite of CSI, with mounted and with raw block volumes. Of each it skips five: the health of
// volumes and of the storage by the controller service and of the storage by the node service (ControllerGetVolumeHealth twice,
// ControllerListVolumeHealth, NodeGetStorageHealth), because the driver has no state beside that of its one node, whose volumes the node
// service reports; and snapshots that are made for a topology (SNAPSHOT_ACCESSIBILITY_CONSTRAINTS), because one that is shared with its
// volume is where that is.
func TestSanity(t *testing.T) {
	w := newFixture(t)
	w.start()
	for i, access := range []string{"mount", "block"} {
		config := sanity.NewTestConfig()
		config.Address = w.socket
		config.TargetPath = filepath.Join(w.dir, access, "target")
		config.StagingPath = filepath.Join(w.dir, access, "staging")
		if err := os.Mkdir(filepath.Join(w.dir, access), 0o700); err != nil {
			t.Fatal(err)
		}
		config.TestVolumeSize = 32 << 20
		config.TestVolumeExpandSize = 64 << 20
		config.TestVolumeAccessType = access
		config.TestNodeVolumeAttachLimit = true
		if i == 0 {
			defer sanity.GinkgoTest(&config).Finalize() // closes its connection
			continue
		}
		sanity.Test(t, config)
	}
}
