package up

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestDefaultReservationFitsTheMachine(t *testing.T) {
	require.EqualValues(t, 512<<20, ptr.To(reservedMemory.of(64<<30)).Value())
	require.EqualValues(t, 256<<20, ptr.To(reservedMemory.of(1<<30)).Value())
	require.EqualValues(t, 1000, ptr.To(reservedPIDs.of(32768)).Value())
	require.EqualValues(t, 400, ptr.To(reservedPIDs.of(4000)).Value())
	l := Layout{Config: Config{DataDir: t.TempDir()}}
	require.NoError(t, os.Mkdir(l.KubeletDir(), 0o755)) // as it is since before the start
	require.NoError(t, l.Resources.complete())
	require.EqualValues(t, DefaultPodPidsLimit, l.Resources.PodPidsLimit)
	require.Equal(t, DefaultOOMScoreAdj, *l.Resources.OOMScoreAdj)
	e, err := l.enforcement()
	require.NoError(t, err)
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage, ReservedPIDs} {
		amount := e.KubeReserved[name]
		require.Positive(t, amount.Sign(), name)
	}
	l.Resources.KubeReserved = map[string]string{"memory": "1Gi"}
	e, err = l.enforcement()
	require.NoError(t, err)
	require.Len(t, e.KubeReserved, 1)
}

func TestInvalidResources(t *testing.T) {
	for want, config := range map[string]ResourceConfig{
		"--oom-score-adj -2000: not between -1000 and 1000": {OOMScoreAdj: ptr.To(-2000)},
		"--swap-behavior":        {SwapBehavior: "All"},
		`--kube-reserved: "gpu"`: {KubeReserved: map[string]string{"gpu": "1"}},
		"--system-reserved: cpu": {SystemReserved: map[string]string{"cpu": "much"}},
	} {
		require.ErrorContains(t, config.complete(), want)
	}
}
