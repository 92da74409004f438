package eviction

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// parse returns the thresholds of settings that are right.
func parse(t *testing.T, c Config) []Threshold {
	t.Helper()
	thresholds, err := ParseThresholds(c)
	require.NoError(t, err)
	return thresholds
}

func TestThresholdsAreParsed(t *testing.T) {
	thresholds := parse(t, Config{
		Hard:            map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "pid.available": "0%"},
		Soft:            map[string]string{"memory.available": "5%"},
		SoftGracePeriod: map[string]string{"memory.available": "1m30s"},
		MinimumReclaim:  map[string]string{"memory.available": "50Mi"},
	})
	require.Len(t, thresholds, 3, "0%% is no threshold")
	hard, disk, soft := thresholds[0], thresholds[1], thresholds[2]
	require.Equal(t, MemoryAvailable, hard.Signal)
	require.True(t, hard.hard())
	require.EqualValues(t, 100<<20, hard.Value.of(1<<40))
	require.EqualValues(t, 50<<20, hard.MinReclaim.of(1<<40))
	require.EqualValues(t, 10, disk.Value.of(100))
	require.Equal(t, "10%", disk.Value.String())
	require.Equal(t, 90*time.Second, soft.Grace)
	require.EqualValues(t, 50, soft.Value.of(1000))

	both := WithAllocatable(thresholds)
	require.Len(t, both, 4)
	require.Equal(t, AllocatableMemoryAvailable, both[3].Signal)

	reserved := Reserved(thresholds, corev1.ResourceList{
		corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	})
	require.EqualValues(t, 100<<20, reserved.Memory().Value(), "soft thresholds reserve nothing")
	require.EqualValues(t, 10<<30, reserved.StorageEphemeral().Value())
}

// TestSoftThresholdThatIsNoneNeedsNoGracePeriod: it is how a file switches one off.
func TestSoftThresholdThatIsNoneNeedsNoGracePeriod(t *testing.T) {
	for _, none := range []string{"0%", "100%"} {
		require.Empty(t, parse(t, Config{Hard: map[string]string{}, Soft: map[string]string{"nodefs.available": none}}))
	}
}

func TestWrongThresholdsAreNamed(t *testing.T) {
	for text, config := range map[string]Config{
		"evictionHard disk=1Gi: unknown signal":                            {Hard: map[string]string{"disk": "1Gi"}},
		"evictionHard memory.available=-5: want an amount":                 {Hard: map[string]string{"memory.available": "-5"}},
		"evictionHard memory.available=0: want more than 0":                {Hard: map[string]string{"memory.available": "0"}},
		"evictionHard memory.available=101%: want a percentage":            {Hard: map[string]string{"memory.available": "101%"}},
		"evictionHard memory.available=NaN%: want a percentage":            {Hard: map[string]string{"memory.available": "NaN%"}},
		"evictionSoft memory.available=1Gi: a soft threshold needs":        {Soft: map[string]string{"memory.available": "1Gi"}},
		"evictionSoftGracePeriod memory.available=-1s: want a duration":    {SoftGracePeriod: map[string]string{"memory.available": "-1s"}},
		"evictionMinimumReclaim memory.available=much: want an amount":     {MinimumReclaim: map[string]string{"memory.available": "much"}},
		"evictionMinimumReclaim nodefs.free=1Gi: unknown signal: want one": {MinimumReclaim: map[string]string{"nodefs.free": "1Gi"}},
	} {
		_, err := ParseThresholds(config)
		require.ErrorContains(t, err, text)
	}
}

// TestThresholdsFollowTheFileSystems has the thresholds and the reclaim of each layout, as the documentation of Kubernetes has
// them.
func TestThresholdsFollowTheFileSystems(t *testing.T) {
	configured := parse(t, Config{Hard: map[string]string{
		"nodefs.available": "10%", "imagefs.available": "15%", "containerfs.available": "50%", "nodefs.inodesFree": "5%",
	}})
	one, images, split := Layout{}, Layout{Images: true}, Layout{Images: true, Containers: true}
	for _, test := range []struct {
		layout Layout
		want   string // of containerfs.available
	}{{one, "10%"}, {images, "15%"}, {split, "10%"}} {
		var found []string
		for _, threshold := range test.layout.thresholds(configured) {
			if threshold.Signal == ContainerFsAvailable {
				found = append(found, threshold.Value.String())
			}
		}
		require.Equal(t, []string{test.want}, found, test.layout.String())
	}
	for _, test := range []struct {
		layout             Layout
		signal             Signal
		containers, images bool
		parts              diskParts
	}{
		{one, MemoryAvailable, false, false, diskParts{true, true, true}},
		{one, NodeFsAvailable, true, true, diskParts{true, true, true}},
		{one, ImageFsInodesFree, true, true, diskParts{true, true, true}},
		{images, NodeFsAvailable, false, false, diskParts{false, true, true}},
		{images, ImageFsAvailable, true, true, diskParts{true, false, false}},
		{images, ContainerFsAvailable, true, true, diskParts{true, false, false}},
		{split, NodeFsAvailable, true, false, diskParts{true, true, true}},
		{split, ImageFsAvailable, false, true, diskParts{}},
		{split, ContainerFsInodesFree, true, false, diskParts{true, true, true}},
	} {
		containers, images := test.layout.reclaims(test.signal)
		require.Equal(t, [2]bool{test.containers, test.images}, [2]bool{containers, images}, "%s %s", test.layout, test.signal)
		if test.signal.isDisk() {
			require.Equal(t, test.parts, test.layout.parts(test.signal), "%s %s", test.layout, test.signal)
		}
	}
	require.Len(t, Config{Hard: map[string]string{"containerfs.available": "1Gi"}}.Warnings(), 1)
}
