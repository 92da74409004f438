package agent

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/record"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/eviction"
)

// fixture has a standalone agent on a fake runtime, with a cgroup of its own.
type fixture struct {
	agent   *Agent
	runtime *fake.Runtime
	events  *record.FakeRecorder
	clock   *clocktesting.FakeClock
}

func newFixture(t *testing.T, change func(*Deps, *Config)) *fixture {
	t.Helper()
	dir := t.TempDir()
	f := &fixture{events: record.NewFakeRecorder(100), clock: clocktesting.NewFakeClock(time.Now())}
	f.runtime = fake.New(f.clock)
	deps := Deps{Runtime: f.runtime, Recorder: f.events, Clock: f.clock, Logger: testlog.New(t, slog.DiscardHandler)}
	config := Config{
		Node: NodeConfig{Name: "n", IPs: []net.IP{net.IPv4(10, 0, 0, 1)}}, RootDir: filepath.Join(dir, "root"),
		Logs:     LogsConfig{PodsDir: filepath.Join(dir, "log")},
		Eviction: eviction.Config{Hard: map[string]string{}}, // the machine of the test may be short of disk
		Cgroups:  CgroupConfig{Root: "/berth-" + strings.ReplaceAll(fmt.Sprintf("%d-%s", os.Getpid(), t.Name()), "/", "-")},
	}
	change(&deps, &config)
	var err error
	f.agent, err = New(deps, config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.agent.Close()) })
	return f
}

func (f *fixture) nextEvent(t *testing.T) string {
	t.Helper()
	select {
	case event := <-f.events.Events:
		return event
	case <-time.After(time.Minute):
		require.Fail(t, "no event")
		return ""
	}
}
