package wakeup_test

import (
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/wakeup"
)

func TestSignalMergesNotifications(t *testing.T) {
	s := wakeup.NewSignal()
	require.Empty(t, s.C())
	s.Notify()
	s.Notify()
	<-s.C()
	require.Empty(t, s.C(), "two notifications are one")
	s.Notify()
	require.Len(t, s.C(), 1, "one that comes later is kept")
}

func TestBroadcastWakesAllThatWaitAndNoneThatComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b wakeup.Broadcast
		b.Notify() // with no waiter it does nothing
		var woken sync.WaitGroup
		for range 3 {
			changed := b.Changed()
			woken.Go(func() { <-changed })
		}
		b.Notify()
		woken.Wait()
		select {
		case <-b.Changed():
			t.Fatal("a channel taken after Notify is closed by the next one only")
		default:
		}
	})
}

// A waiter that takes the channel before it reads the state misses no change.
func TestBroadcastLosesNoChange(t *testing.T) {
	var b wakeup.Broadcast
	var mu sync.Mutex
	count := 0
	read := func() int { mu.Lock(); defer mu.Unlock(); return count }
	const total = 1000
	var waiters sync.WaitGroup
	for range 4 {
		waiters.Go(func() {
			for {
				changed := b.Changed()
				if read() == total {
					return
				}
				<-changed
			}
		})
	}
	for range total {
		mu.Lock()
		count++
		mu.Unlock()
		b.Notify()
	}
	waiters.Wait()
}
