package csi

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// fakeList is an API where pv-7 alone is attached and which answers nothing before it may.
type fakeList struct {
	*attachmentLister
	broken atomic.Bool
	lists  atomic.Int32
	result chan struct{}
}

func newFakeList() *fakeList {
	client := fake.NewClientset(&storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: "disk.example.com", NodeName: "node-1",
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To("pv-7")}},
	})
	a := &fakeList{attachmentLister: newAttachmentLister(client, "disk.example.com"), result: make(chan struct{})}
	client.PrependReactor("list", "volumeattachments", func(clienttesting.Action) (bool, runtime.Object, error) {
		a.lists.Add(1)
		<-a.result
		if a.broken.Load() {
			return true, nil, errors.New("away")
		}
		return false, nil, nil
	})
	return a
}

// lookup begins to look a volume up and returns when that waits for something.
func (a *fakeList) lookup(ctx context.Context, volume string) <-chan string {
	found := make(chan string, 1)
	go func() {
		node, attached, err := a.node(ctx, volume)
		found <- fmt.Sprint(node, attached, err)
	}()
	synctest.Wait()
	return found
}

const notAttached = "false <nil>"

// TestConcurrentDeletionsShareOneList holds the first question until all others are there: one more answers them all.
func TestConcurrentDeletionsShareOneList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeList()
		first := a.lookup(t.Context(), "pv-0")
		require.EqualValues(t, 1, a.lists.Load())
		var others []<-chan string
		for i := range 50 {
			others = append(others, a.lookup(t.Context(), fmt.Sprint("pv-", i)))
		}
		require.EqualValues(t, 1, a.lists.Load())
		a.result <- struct{}{}
		require.Equal(t, notAttached, <-first)
		synctest.Wait()
		require.EqualValues(t, 2, a.lists.Load(), "an answer that was on its way may be older than who asks")
		close(a.result)
		for i, found := range others {
			want := notAttached
			if i == 7 {
				want = "node-1true <nil>"
			}
			require.Equal(t, want, <-found)
		}
		require.EqualValues(t, 2, a.lists.Load())
	})
}

// TestExpiredCallerDoesNotFailOthers has the one who would put the question go, before it is put and while it is.
func TestExpiredCallerDoesNotFailOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeList()
		first := a.lookup(t.Context(), "pv-1")
		ctx, cancel := context.WithCancel(t.Context())
		second, third := a.lookup(ctx, "pv-2"), a.lookup(t.Context(), "pv-3")
		cancel()
		require.Contains(t, <-second, context.Canceled.Error())
		close(a.result)
		require.Equal(t, notAttached, <-first)
		require.Equal(t, notAttached, <-third)
		require.Equal(t, notAttached, <-a.lookup(t.Context(), "pv-4"), "the turn came back")
	})
}

// TestUnavailableAPIIsNotListedByEach: its error is everybody's answer.
func TestUnavailableAPIIsNotListedByEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newFakeList()
		a.broken.Store(true)
		var all []<-chan string
		for range 10 {
			all = append(all, a.lookup(t.Context(), "pv-1"))
		}
		close(a.result)
		for _, found := range all {
			require.Contains(t, <-found, "away")
		}
		require.EqualValues(t, 2, a.lists.Load())
	})
}

// TestAVolumeMayBeAttachedTwice counts a volume as attached until the last of its attachments is gone.
func TestAVolumeMayBeAttachedTwice(t *testing.T) {
	known := newAttachments()
	known.add("a", attachment{"pv", "node-1"})
	known.add("b", attachment{"pv", "node-2"})
	volume, ok := known.remove("a")
	require.True(t, ok)
	require.Equal(t, "pv", volume)
	node, attached := known.node("pv")
	require.True(t, attached)
	require.Equal(t, "node-2", node)
	_, ok = known.remove("a")
	require.False(t, ok)
	_, _ = known.remove("b")
	_, attached = known.node("pv")
	require.False(t, attached)
}
