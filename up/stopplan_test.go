package up

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/systemdunit"
	"github.com/berth-dev/berth/up/isolate"
	"github.com/berth-dev/berth/up/progress"
)

// TestPodsHaveWhatTheStopLeavesThem stops a cluster as a user, as systemd, and as a systemd that cannot be asked.
func TestPodsHaveWhatTheStopLeavesThem(t *testing.T) {
	const s = time.Second
	for name, test := range map[string]struct {
		stop                        systemdunit.Stop
		err                         error
		inside, keeps               bool
		ordinary, critical, timeout time.Duration
		says                        string
	}{
		"user":                     {ordinary: 10 * s, critical: 10 * s, timeout: 70 * s, says: "press Ctrl-C again"},
		"berth.service":            {stop: systemdunit.Stop{Timeout: 240 * s}, ordinary: 90 * s, critical: 30 * s, timeout: 170 * s, says: "at most 1m30s, and critical ones 30s after"},
		"a service that may wait":  {stop: systemdunit.Stop{Timeout: time.Hour}, ordinary: 90 * s, critical: 30 * s, timeout: 170 * s, says: "grace periods"},
		"a service with a default": {stop: systemdunit.Stop{Timeout: 88 * s}, ordinary: 33 * s, critical: 11 * s, timeout: 66 * s, says: "grace periods"},
		"restart":                  {stop: systemdunit.Stop{Restart: true, Timeout: 240 * s}, keeps: true, ordinary: 90 * s, critical: 30 * s, timeout: 170 * s, says: "the Pods run on"},
		"restart of an isolated one": {stop: systemdunit.Stop{Restart: true, Timeout: 240 * s}, inside: true, ordinary: 90 * s, critical: 30 * s, timeout: 170 * s,
			says: "grace periods"},
		"no reply": {err: errors.New("no bus"), ordinary: 10 * s, critical: 10 * s, timeout: 70 * s, says: "press Ctrl-C again"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			config := RunConfig{Layout: Layout{Config: Config{DataDir: t.TempDir()}}}
			if test.inside {
				config.Inside = &isolate.Inside{}
			}
			c, err := New(Deps{Progress: progress.New(&out, nil, clock.RealClock{}), Stopping: func(_ context.Context, ownPIDs bool) (systemdunit.Stop, error) {
				require.Equal(t, test.inside, ownPIDs)
				return test.stop, test.err
			}}, config)
			require.NoError(t, err)
			c.logger = slog.New(slog.DiscardHandler)
			c.planStop(t.Context())
			require.Equal(t, test.keeps, c.stopPlan.keepPods)
			ordinary, critical := c.stopPlan.grace()
			require.Equal(t, []time.Duration{test.ordinary, test.critical, test.timeout}, []time.Duration{ordinary, critical, c.stopPlan.podsTimeout()})
			require.Contains(t, out.String(), test.says)
		})
	}
}
