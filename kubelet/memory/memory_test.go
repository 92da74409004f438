package memory

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestIdleWatcherReleasesOncePerIdlePeriod(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	released := make(chan struct{}, 10)
	w := NewIdleWatcher(clock, func() { released <- struct{}{} })
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _ = w.Start(ctx) })
	defer func() { cancel(); group.Wait() }()

	waiting := func() {
		require.Eventually(t, clock.HasWaiters, time.Minute, time.Millisecond)
	}
	waiting()
	clock.Step(IdleAfter)
	<-released // idle after the start
	require.Never(t, clock.HasWaiters, 20*time.Millisecond, time.Millisecond, "no timer while idle")

	w.NoteActivity()
	waiting()
	w.NoteActivity()
	require.Eventually(t, func() bool { return len(w.activity.C()) == 0 }, time.Minute, time.Millisecond)
	clock.Step(IdleAfter)
	waiting() // there was activity meanwhile: the wait begins again
	require.Empty(t, released)
	clock.Step(IdleAfter)
	<-released
	require.False(t, clock.HasWaiters())
}

func TestReleaseDropsProgramPages(t *testing.T) {
	before := resident(t)
	require.NoError(t, Release())
	after := resident(t)
	require.Less(t, after, before, "KiB of files in memory")
	require.Equal(t, "still works", strings.Join([]string{"still", "works"}, " "))
}

// resident returns the resident file pages of this process, in KiB.
func resident(t *testing.T) int {
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "RssFile:")
	require.True(t, found)
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return kib
}

func TestCleanMappings(t *testing.T) {
	const smaps = `00400000-00500000 r--p 00000000 fe:00 17 /bin/berth
Rss:                  16 kB
Anonymous:             0 kB
00500000-00900000 r-xp 00100000 fe:00 17 /bin/berth
Anonymous:             0 kB
00900000-00901000 r--p 00500000 fe:00 17 /bin/berth
Anonymous:             4 kB
00901000-00a00000 rw-p 00501000 fe:00 17 /bin/berth
Anonymous:             0 kB
7f0000000000-7f0000100000 r-xp 00000000 fe:00 18 /lib/libc.so.6
Anonymous:             0 kB
7f0000200000-7f0000300000 r--p 00000000 00:00 0
Anonymous:             0 kB
7f0000300000-7f0000400000 r--s 00000000 fe:00 19 /var/lib/shared.db
Anonymous:             0 kB
7f0000400000-7f0000500000 r--p 00000000 fe:00 20 /lib/replaced.so (deleted)
Anonymous:             0 kB
7f0000600000-7f0000602000 r-xp 00000000 00:00 0 [vdso]
Anonymous:             0 kB
`
	require.Equal(t, []mapping{{0x400000, 0x100000}, {0x500000, 0x400000}, {0x7f0000000000, 0x100000}},
		cleanMappings([]byte(smaps)))
}
