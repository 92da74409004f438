package page

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/timeline"
)

// restartedRecords are those of a berth that ends each stream when the test says so.
type restartedRecords struct {
	localRecords
	opened, end chan struct{}
}

func (r restartedRecords) Stages(ctx context.Context, _ types.UID, ready func(), _ func(timeline.Change)) error {
	ready()
	r.opened <- struct{}{}
	select {
	case <-ctx.Done():
		return nil
	case <-r.end:
		return errors.New("berth was stopped")
	}
}

// TestStagesAreFollowedAgainAfterARestart ends the stream of stages while a page is open: with the first record that can be read again
// there is a new one, and all is explained anew, because changes were missed.
func TestStagesAreFollowedAgainAfterARestart(t *testing.T) {
	records := restartedRecords{localRecords{timeline.New(clock.RealClock{}, 0)}, make(chan struct{}, 1), make(chan struct{})}
	h, err := newHub(t.Context(), Deps{
		Connect: func() (kubernetes.Interface, error) { return fake.NewClientset(), nil }, Records: records, Clock: clock.RealClock{},
	}, Config{})
	require.NoError(t, err)
	defer h.close()
	<-records.opened
	before := h.version("a")
	records.end <- struct{}{}
	require.Eventually(t, func() bool {
		_, _, err := h.Record(t.Context(), "a")
		require.NoError(t, err)
		return len(records.opened) == 1
	}, time.Minute, time.Millisecond)
	require.Greater(t, h.version("a"), before)
}
