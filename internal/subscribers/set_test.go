package subscribers_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/berth-dev/berth/internal/subscribers"
)

func TestSendCallsEachFunctionInOrder(t *testing.T) {
	var set subscribers.Set[int]
	var got []string
	removeA := set.Add(func(v int) { got = append(got, fmt.Sprint("a", v)) })
	set.Add(func(v int) { got = append(got, fmt.Sprint("b", v)) })
	set.Send(1, 2)
	removeA()
	removeA()
	set.Send(3)
	set.Send()
	if want := []string{"a1", "a2", "b1", "b2", "b3"}; !slices.Equal(got, want) {
		t.Errorf("calls %v, want %v", got, want)
	}
}

// TestRemoveDuringSend removes functions, and adds one, from within a call.
func TestRemoveDuringSend(t *testing.T) {
	var set subscribers.Set[int]
	calls, later := 0, 0
	var remove func()
	remove = set.Add(func(int) {
		calls++
		remove()
		set.Add(func(int) { later++ })
	})
	set.Send(1)
	set.Send(2)
	if calls != 1 || later != 1 {
		t.Errorf("%d and %d calls, want 1 and 1", calls, later)
	}
}

func TestConcurrentUse(t *testing.T) {
	var set subscribers.Set[int]
	var calls atomic.Int64
	set.Add(func(int) { calls.Add(1) })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				remove := set.Add(func(int) {})
				set.Send(1)
				remove()
			}
		})
	}
	wg.Wait()
	if got := calls.Load(); got != 800 {
		t.Errorf("%d calls of the function that stayed, want 800", got)
	}
}
