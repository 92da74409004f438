package up

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
)

func TestRequestsOfAStartAreRepeatedUntilTheyAreAnswered(t *testing.T) {
	noAnswer := fmt.Errorf("apply: %w", &url.Error{Op: "Patch", Err: errors.New("net/http: TLS handshake timeout")})
	busy := fmt.Errorf("apply: %w", apierrors.NewTooManyRequests("later", 1))
	refused := fmt.Errorf("apply: %w", apierrors.NewForbidden(schema.GroupResource{}, "n", errors.New("no")))
	for _, c := range []struct {
		name  string
		errs  []error // of the calls; the last one repeats
		calls int     // 0: until the limit
		want  error
	}{
		{"answered at once", []error{nil}, 1, nil},
		{"answered at last", []error{noAnswer, busy, noAnswer, nil}, 4, nil},
		{"refused", []error{noAnswer, refused}, 2, refused},
		{"never answered", []error{noAnswer}, 0, noAnswer},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster, calls, began := &Cluster{clock: clock.RealClock{}, logger: slog.New(slog.DiscardHandler)}, 0, time.Now()
				err := cluster.untilAnswered(t.Context(), func(context.Context) error {
					calls++
					return c.errs[min(calls, len(c.errs))-1]
				})
				require.Equal(t, c.want, err)
				if c.calls > 0 {
					require.Equal(t, c.calls, calls)
				} else {
					require.GreaterOrEqual(t, time.Since(began), answerLimit)
				}
			})
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cluster := &Cluster{clock: clock.RealClock{}, logger: slog.New(slog.DiscardHandler)}
	require.Equal(t, noAnswer, cluster.untilAnswered(ctx, func(context.Context) error { cancel(); return noAnswer }))
}
