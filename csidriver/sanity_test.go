package csidriver_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/stretchr/testify/require"
)

// notForThisDriver has the specs of CSI's suite that are skipped, for the reason beside them. Each is skipped once for mounted and once for
// raw block volumes.
var notForThisDriver = map[string]string{
	"CreateSnapshot [Controller Server] should succeed when creating a snapshot with accessibility requirements": "a snapshot is where its volume is: " +
		"it shares that one's blocks",
	"ControllerGetVolumeHealth [Controller Server] should return health for a valid volume":   "the health of a volume is known on its node, which reports it",
	"ControllerGetVolumeHealth [Controller Server] should fail when no volume id is provided": "as above",
	"ControllerListVolumeHealth [Controller Server] should return appropriate response":       "as above",
	"Node Service NodeGetStorageHealth should return appropriate response":                    "the node has no storage but its volumes, which report their own",
	"Controller Service [Controller Server] ListVolumes pagination should detect volumes added between pages and accept tokens when the " +
		"last volume from a page is deleted": "the suite itself marks it as pending",
}

// TestSanity runs the whole conformance suite of CSI, with mounted and with raw block volumes. Every spec passes but those of
// notForThisDriver, which the suite skips because the driver lacks their capability.
func TestSanity(t *testing.T) {
	w := newFixture(t)
	w.start()
	skipped := map[string]int{}
	passed := 0
	ginkgo.ReportAfterEach(func(spec types.SpecReport) {
		switch {
		case spec.State.Is(types.SpecStateSkipped | types.SpecStatePending):
			skipped[spec.FullText()]++
		case spec.State.Is(types.SpecStatePassed):
			passed++
		}
	})
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
	require.ElementsMatch(t, slices.Collect(maps.Keys(notForThisDriver)), slices.Collect(maps.Keys(skipped)), "the specs that are skipped")
	for name, times := range skipped {
		require.Equal(t, 2, times, name)
	}
	require.Greater(t, passed, 150)
	t.Logf("%d passed, %d skipped", passed, 2*len(skipped))
}
