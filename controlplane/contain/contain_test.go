package contain_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"

	"github.com/berth-dev/berth/controlplane/contain"
)

// TestAPanicEndsOneStep panics in each form of a root, and in a worker of a controller as upstream runs them.
func TestAPanicEndsOneStep(t *testing.T) {
	contain.Install()
	require.NoError(t, contain.Do("nothing", func() error { return nil }))
	cause := errors.New("cause")
	require.Equal(t, cause, contain.Do("nothing", func() error { return cause }))
	require.EqualError(t, contain.Func("step", func() error { panic("no") })(), "step panicked: no")
	contain.Guard("step", func() { panic("no") })()

	ctx, cancel := context.WithCancel(t.Context())
	worked := 0
	wait.UntilWithContext(ctx, func(context.Context) {
		if worked++; worked == 3 {
			cancel()
			return
		}
		panic("an object that this controller does not understand")
	}, time.Millisecond)
	require.Equal(t, 3, worked, "the worker goes on with the next object")

	for site, count := range map[string]float64{"step": 2, "kubernetes": 2, "nothing": 0} {
		found, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "berth_panics_total", map[string]string{}, "site")
		require.NoError(t, err)
		require.InDelta(t, count, found[site], 0, site)
	}
}
