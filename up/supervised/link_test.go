package supervised

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/up/supervisor"
)

const eventLimit, eventPeriod = time.Minute, time.Millisecond // of require.Eventually

// peer is the supervisor's end of a Link.
type peer struct {
	t     *testing.T
	write *json.Encoder
	read  *json.Decoder
}

// connected returns a Link that serves until the test ends, and the other end of it. running are the programs of an earlier process.
func connected(t *testing.T, running ...string) (*Link, *peer) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	p := &peer{t: t, write: json.NewEncoder(theirs), read: json.NewDecoder(theirs)}
	hello := supervisor.Hello{Task: supervisor.TaskRun, Restarts: 1, Running: make(map[string][]string)}
	for _, name := range running {
		hello.Running[name] = nil
	}
	require.NoError(t, p.write.Encode(hello))
	link, err := Open(ours)
	require.NoError(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		link.Serve(func() {})
	}()
	t.Cleanup(func() {
		require.NoError(t, theirs.Close())
		<-served
		require.NoError(t, ours.Close())
	})
	return link, p
}

// next returns the next request of the Link.
func (p *peer) next() (request supervisor.Request) {
	p.t.Helper()
	require.NoError(p.t, p.read.Decode(&request))
	return request
}

// run runs a program in a goroutine, and sends its end.
func run(t *testing.T, link *Link, name string) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- link.Run(context.Background(), supervisor.Program{Name: name, Argv: []string{name}}) }()
	return ended
}

// TestAnAdoptedProgramThatFailsEarlyIsReported has a program of an earlier process fail before this process comes to run it: the first
// Run reports that, as it does for one that fails later, and the next one starts the program.
func TestAnAdoptedProgramThatFailsEarlyIsReported(t *testing.T) {
	link, supervisorEnd := connected(t, "dns", "proxy")
	require.True(t, link.Adopted("dns"))
	require.NoError(t, supervisorEnd.write.Encode(supervisor.Event{Program: "dns", Error: "dns hung and was killed"}))
	require.NoError(t, supervisorEnd.write.Encode(supervisor.Event{Program: "proxy"})) // it was stopped: there is nothing to report
	require.Eventually(t, func() bool { return !link.Adopted("dns") && !link.Adopted("proxy") }, eventLimit, eventPeriod)

	ended := run(t, link, "dns")
	require.Equal(t, supervisor.Request{Kind: supervisor.KindSeen, Name: "dns"}, supervisorEnd.next())
	require.EqualError(t, <-ended, "dns hung and was killed")
	for _, name := range []string{"dns", "proxy"} {
		ended = run(t, link, name)
		start := supervisorEnd.next()
		require.Equal(t, supervisor.KindStart, start.Kind)
		require.Equal(t, name, start.Program.Name)
		require.NoError(t, supervisorEnd.write.Encode(supervisor.Event{Program: name, Error: "it failed again"}))
		require.Equal(t, supervisor.Request{Kind: supervisor.KindSeen, Name: name}, supervisorEnd.next())
		require.EqualError(t, <-ended, "it failed again")
	}
}

// TestAnAdoptedProgramIsFollowed runs a program that runs already: nothing is started, and its end is the end of Run.
func TestAnAdoptedProgramIsFollowed(t *testing.T) {
	link, supervisorEnd := connected(t, "dns")
	ended := run(t, link, "dns")
	require.Eventually(t, func() bool {
		link.mu.Lock()
		defer link.mu.Unlock()
		return link.exits["dns"] != nil
	}, eventLimit, eventPeriod)
	require.NoError(t, supervisorEnd.write.Encode(supervisor.Event{Program: "dns", Error: "dns hung and was killed"}))
	require.Equal(t, supervisor.Request{Kind: supervisor.KindSeen, Name: "dns"}, supervisorEnd.next())
	require.EqualError(t, <-ended, "dns hung and was killed")
}
