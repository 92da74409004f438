package authzretry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/kubelet/authzretry"
)

var (
	forbidden = apierrors.NewForbidden(corev1.Resource("configmaps"), "c", errors.New("no relationship found"))
	noPod     = apierrors.NewNotFound(corev1.Resource("pods"), "p")
	noMap     = apierrors.NewNotFound(corev1.Resource("configmaps"), "c")
)

func TestDo(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		results []error // the last one is repeated
		asked   int
		took    time.Duration
	}{
		"known":                     {[]error{nil}, 1, 0},
		"known in a moment":         {[]error{forbidden, forbidden, nil}, 3, 12 * time.Millisecond},
		"the Pod in a moment":       {[]error{noPod, nil}, 2, 4 * time.Millisecond},
		"refused for good":          {[]error{forbidden}, 9, 1020 * time.Millisecond},
		"an object that is missing": {[]error{noMap}, 1, 0},
		"another error":             {[]error{broken}, 1, 0},
		"refused, then broken":      {[]error{forbidden, broken}, 2, 4 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, calls := time.Now(), 0
				last := test.results[len(test.results)-1]
				result, err := authzretry.Do(t.Context(), clock.RealClock{}, func(context.Context) (int, error) {
					calls++
					if calls <= len(test.results) {
						return calls, test.results[calls-1]
					}
					return calls, last
				})
				require.Equal(t, last, err)
				require.Equal(t, test.asked, result, "the last answer is the one")
				require.Equal(t, test.asked, calls)
				require.Equal(t, test.took, time.Since(began))
			})
		})
	}
}

func TestDoEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		_, err := authzretry.Do(ctx, clock.RealClock{}, func(context.Context) (int, error) {
			cancel()
			return 0, forbidden
		})
		require.Equal(t, error(forbidden), err)
		require.Zero(t, time.Since(began))
	})
}
