package kuberuntime

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCrashLoop lives through a crash loop: every instance runs for one second, and is started as soon as it may be.
func TestCrashLoop(t *testing.T) {
	pod, backoff := podOf("Always", "a"), NewBackoff(0)
	now, created := at(100), at(20)
	var waits []int
	for attempt := range uint32(8) {
		last := exited("a", 0, 20)
		last.CreatedAt, last.FinishedAt, last.Attempt = created, created.Add(time.Second), attempt
		now = last.FinishedAt
		actions := ComputeActions(pod, statusOf(last), Inputs{Now: now, Backoff: backoff})
		if len(actions.Waiting) > 0 {
			require.Empty(t, actions.Start)
			require.Equal(t, actions.NextSync, actions.Waiting[0].Until)
			require.Equal(t, fmt.Sprintf("back-off %s restarting failed container=a pod=p_ns(u1)",
				actions.Waiting[0].Delay), actions.Waiting[0].Message)
			require.False(t, actions.KillPod, "a pod that waits is not over")
			early := ComputeActions(pod, statusOf(last), Inputs{Now: actions.NextSync.Add(-1), Backoff: backoff})
			require.Len(t, early.Waiting, 1)
			now = actions.NextSync
			actions = ComputeActions(pod, statusOf(last), Inputs{Now: now, Backoff: backoff})
		}
		waits = append(waits, int(now.Sub(last.FinishedAt).Seconds()))
		require.Len(t, actions.Start, 1)
		require.Equal(t, attempt+1, actions.Start[0].Attempt)
		backoff.Started(pod.UID, actions.Start[0].BackoffKey, actions.Start[0].BackoffSince, now)
		created = now
	}
	require.Equal(t, []int{0, 10, 20, 40, 80, 160, 300, 300}, waits)

	last := exited("a", 1, 20)
	last.CreatedAt, last.FinishedAt = created, now.Add(10*time.Minute+time.Second)
	require.Equal(t, "+a#1", describe(ComputeActions(pod, statusOf(last), Inputs{Now: last.FinishedAt, Backoff: backoff})),
		"ten good minutes are rewarded")

	last.FinishedAt = now.Add(time.Second)
	require.Equal(t, "~a", describe(ComputeActions(pod, statusOf(last), Inputs{Now: last.FinishedAt, Backoff: backoff})))
	repaired := podOf("Always", "a")
	repaired.Spec.Containers[0].Image = "image/better"
	require.Equal(t, "+a#1", describe(ComputeActions(repaired, statusOf(last), Inputs{Now: last.FinishedAt, Backoff: backoff})),
		"another image is another key")
	backoff.Forget(pod.UID)
	require.Equal(t, "+a#1", describe(ComputeActions(pod, statusOf(last), Inputs{Now: last.FinishedAt, Backoff: backoff})))
}

func TestBackoffLimit(t *testing.T) {
	b := NewBackoff(4 * time.Second)
	now := at(0)
	for range 3 {
		b.Started("u", "k", now, now)
	}
	until, delay := b.Due("u", "k", now)
	require.Equal(t, 4*time.Second, delay)
	require.Equal(t, at(4), until)
	_, delay = b.Due("u", "other", now)
	require.Zero(t, delay)
	b.Started("u", "other", time.Time{}, now)
	_, delay = b.Due("u", "other", now)
	require.Zero(t, delay, "a first start is no restart")
}

func TestBackoffAfterTheClockWasSetBack(t *testing.T) {
	pod, backoff := podOf("Always", "a"), NewBackoff(0)
	last := exited("a", 1, 3600)
	first := ComputeActions(pod, statusOf(last), Inputs{Now: at(3600), Backoff: backoff})
	backoff.Started(pod.UID, first.Start[0].BackoffKey, first.Start[0].BackoffSince, at(3600))
	require.Equal(t, "~a", describe(ComputeActions(pod, statusOf(last), Inputs{Now: at(3601), Backoff: backoff})))
	require.Equal(t, "+a#1", describe(ComputeActions(pod, statusOf(last), Inputs{Now: at(10), Backoff: backoff})),
		"it does not wait for an hour")
}

func TestInitWaitsInBackoff(t *testing.T) {
	pod, backoff := podOf("Always", "side:s", "init:i", "a"), NewBackoff(0)
	last := exited("i", 1, 12)
	status := statusOf(running("s", 11), last)
	actions := ComputeActions(pod, status, Inputs{Now: at(13), Backoff: backoff})
	require.Equal(t, "+i#1!", describe(actions))
	backoff.Started(pod.UID, actions.Start[0].BackoffKey, actions.Start[0].BackoffSince, at(13))
	require.Equal(t, "~i", describe(ComputeActions(pod, status, Inputs{Now: at(14), Backoff: backoff})))
}
