package pleg

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// fakeExits are the exit codes of containers that ended at a known moment.
type fakeExits map[string]int32

var ended = time.Unix(1e9, 5)

func (e fakeExits) Exit(_ context.Context, id string) (int32, time.Time, bool) {
	code, ok := e[id]
	return code, ended, ok
}

func TestUnknownExitsAreRestored(t *testing.T) {
	lost := func(id string, change func(*runtimeapi.ContainerStatus)) *runtimeapi.ContainerStatus {
		status := &runtimeapi.ContainerStatus{
			Id: id, State: runtimeapi.ContainerState_CONTAINER_EXITED, StartedAt: 1, FinishedAt: 2, ExitCode: 255, Reason: "Unknown",
		}
		change(status)
		return status
	}
	nothing := func(*runtimeapi.ContainerStatus) {}
	for name, test := range map[string]struct {
		status   *runtimeapi.ContainerStatus
		code     int32
		reason   string
		message  string
		finished int64
	}{
		"succeeded": {lost("good", nothing), 0, "Completed", "", ended.UnixNano()},
		"failed":    {lost("bad", nothing), 3, "Error", "", ended.UnixNano()},
		"unknown":   {lost("other", nothing), 255, "Unknown", unknownMessage, 2},
		"the runtime says more": {
			lost("other", func(c *runtimeapi.ContainerStatus) { c.Message = "more" }), 255, "Unknown", "more", 2},
		"really ended with 255": {
			lost("bad", func(c *runtimeapi.ContainerStatus) { c.Reason = "Error" }), 255, "Error", "", 2},
		"never started": {
			lost("bad", func(c *runtimeapi.ContainerStatus) { c.StartedAt = 0 }), 255, "Unknown", "", 2},
		"runs": {
			lost("bad", func(c *runtimeapi.ContainerStatus) { c.State = runtimeapi.ContainerState_CONTAINER_RUNNING }),
			255, "Unknown", "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := &Watcher{deps: Deps{Exits: fakeExits{"good": 0, "bad": 3}}}
			w.restoreExitCode(t.Context(), test.status)
			require.Equal(t, test.code, test.status.ExitCode)
			require.Equal(t, test.reason, test.status.Reason)
			require.Equal(t, test.message, test.status.Message)
			require.Equal(t, test.finished, test.status.FinishedAt)
		})
	}
	status := lost("good", nothing)
	(&Watcher{}).restoreExitCode(t.Context(), status)
	require.Equal(t, unknownMessage, status.Message, "no recorder")
}
