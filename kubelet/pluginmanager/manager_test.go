package pluginmanager_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/pluginmanager"
	volumecsi "github.com/berth-dev/berth/volume/csi"
	"github.com/berth-dev/berth/volume/csi/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testTimeout = time.Minute

// recordingHandler records its calls.
type recordingHandler struct {
	calls chan string
	mu    sync.Mutex
	fail  []error // what the next calls of Register return
}

func (h *recordingHandler) Register(_ context.Context, plugin pluginmanager.Plugin) error {
	h.calls <- "register " + plugin.Name + " " + filepath.Base(filepath.Dir(plugin.Endpoint))
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.fail) == 0 {
		return nil
	}
	err := h.fail[0]
	h.fail = h.fail[1:]
	return err
}

func (h *recordingHandler) Deregister(_ context.Context, plugin pluginmanager.Plugin) error {
	h.calls <- "deregister " + plugin.Name
	return nil
}

type fixture struct {
	*recordingHandler
	t     *testing.T
	dir   string
	base  string
	clock *testclock.FakeClock

	manager *pluginmanager.Manager // the last one
}

func newFixture(t *testing.T) *fixture {
	base, err := os.MkdirTemp("", "plugins") // t.TempDir may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	return &fixture{
		t: t, base: base, dir: filepath.Join(base, "registry"), clock: testclock.NewFakeClock(time.Now()),
		recordingHandler: &recordingHandler{calls: make(chan string, 100)},
	}
}

// start starts a Manager and returns a function that stops it.
func (f *fixture) start() (stop func()) {
	f.t.Helper()
	// A plugin that does not respond in time is retried when the clock advances: here it stands still.
	manager, err := pluginmanager.New(pluginmanager.Deps{
		Handlers: map[string]pluginmanager.Handler{registerapi.CSIPlugin: f.recordingHandler}, Clock: f.clock,
	}, pluginmanager.Config{Dir: f.dir, InfoTimeout: testTimeout})
	require.NoError(f.t, err)
	f.manager = manager
	ctx, cancel := context.WithCancel(context.WithoutCancel(f.t.Context()))
	done := make(chan error, 1)
	go func() { done <- manager.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(f.t, <-done)
	})
	f.t.Cleanup(stop)
	return stop
}

// driver serves a driver with its registration socket at the path below the directory.
func (f *fixture) driver(name, socket string, change ...func(*fake.Config)) *fake.Driver {
	f.t.Helper()
	config := fake.Config{Name: name, NodeID: "id", Dir: filepath.Join(f.base, name)}
	for _, apply := range change {
		apply(&config)
	}
	driver := fake.New(config)
	path := filepath.Join(f.dir, socket)
	require.NoError(f.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(f.t, driver.Serve(path))
	f.t.Cleanup(driver.Stop)
	return driver
}

func (f *fixture) nextCall() string {
	f.t.Helper()
	select {
	case notifyErr := <-f.calls:
		return notifyErr
	case <-time.After(testTimeout):
		f.t.Fatal("the handler was not called")
		return ""
	}
}

func (f *fixture) answer(driver *fake.Driver) *registerapi.RegistrationStatus {
	f.t.Helper()
	select {
	case status := <-driver.Notified():
		return status
	case <-time.After(testTimeout):
		f.t.Fatal("the plugin was not notified")
		return nil
	}
}

// requireCounts waits until the metric has exactly these sockets and states, each with the value 1.
func (f *fixture) requireCounts(want ...string) {
	f.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(f.t, registry.Register(f.manager))
	var got []string
	defer func() { require.Equal(f.t, want, got) }()
	require.Eventually(f.t, func() bool {
		families, err := registry.Gather()
		require.NoError(f.t, err)
		got = nil
		for _, family := range families {
			require.Equal(f.t, "plugin_manager_total_plugins", family.GetName())
			for _, metric := range family.GetMetric() {
				require.Equal(f.t, 1.0, metric.GetGauge().GetValue())
				got = append(got, filepath.Base(metric.GetLabel()[0].GetValue())+" "+metric.GetLabel()[1].GetValue())
			}
		}
		slices.Sort(got)
		return slices.Equal(want, got)
	}, testTimeout, time.Millisecond)
}

func TestPluginsComeAndGo(t *testing.T) {
	f := newFixture(t)
	first := f.driver("first", "first.sock")
	stop := f.start()
	require.Equal(t, "register first first", f.nextCall())
	require.True(t, f.answer(first).PluginRegistered)

	second := f.driver("second", "deep/down/second.sock")
	require.Equal(t, "register second second", f.nextCall(), "directories below are watched")
	require.True(t, f.answer(second).PluginRegistered)

	f.requireCounts("first.sock actual_state_of_world", "first.sock desired_state_of_world",
		"second.sock actual_state_of_world", "second.sock desired_state_of_world")

	f.driver("hidden", ".hidden.sock")
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "file.sock"), nil, 0o600))
	second.Stop()
	require.Equal(t, "deregister second", f.nextCall())
	f.requireCounts("first.sock actual_state_of_world", "first.sock desired_state_of_world")

	require.NoError(t, first.Serve("")) // a new socket of the node service is not in the directory
	first.Stop()
	require.Equal(t, "deregister first", f.nextCall())
	again := f.driver("first", "first.sock")
	require.Equal(t, "register first first", f.nextCall())
	require.True(t, f.answer(again).PluginRegistered)

	stop()
	require.Empty(t, f.calls, "plugins stay registered when the Manager stops")
	f.start()
	require.Equal(t, "register first first", f.nextCall(), "and a new one finds them")
}

func TestPluginThatFailsIsTriedAgain(t *testing.T) {
	f := newFixture(t)
	f.failNext(errors.New("not now"))
	driver := f.driver("d", "d.sock")
	f.start()
	require.Equal(t, "register d d", f.nextCall())
	status := f.answer(driver)
	require.False(t, status.PluginRegistered)
	require.Contains(t, status.Error, "not now")
	require.Eventually(t, func() bool {
		f.clock.Step(10 * time.Millisecond)
		return len(f.calls) > 0
	}, testTimeout, time.Millisecond)
	require.Equal(t, "register d d", f.nextCall())
	require.True(t, f.answer(driver).PluginRegistered)
}

// TestAPluginMayLieDeep uses sockets whose paths are too long for a socket address.
func TestAPluginMayLieDeep(t *testing.T) {
	f := newFixture(t)
	deep := strings.Repeat("d", 120)
	f.dir = filepath.Join(f.base, deep)
	driver := f.driver("d", "d.sock", func(c *fake.Config) { c.Dir = filepath.Join(f.base, deep+"-plugin") })
	f.start()
	require.Equal(t, "register d "+deep+"-plugin", f.nextCall())
	require.True(t, f.answer(driver).PluginRegistered)
	endpoint := driver.Endpoint()
	require.Greater(t, len(endpoint), 120)
	connected, err := volumecsi.Dial(t.Context(), "d", endpoint)
	require.NoError(t, err)
	require.NoError(t, connected.Close())
	driver.Stop()
	require.Equal(t, "deregister d", f.nextCall())
}

// TestAPluginMayLinkItsSocket has a socket in the plugin's own directory, and a link to it that stays when the plugin restarts.
func TestAPluginMayLinkItsSocket(t *testing.T) {
	f := newFixture(t)
	elsewhere := filepath.Join(f.base, "elsewhere")
	driver := f.driver("d", "../elsewhere/d.sock")
	require.NoError(t, os.MkdirAll(f.dir, 0o755))
	require.NoError(t, os.Symlink("../elsewhere/d.sock", filepath.Join(f.dir, "d.sock")))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(f.dir, "directory")))
	f.start()
	require.Equal(t, "register d d", f.nextCall())
	require.True(t, f.answer(driver).PluginRegistered)
	f.requireCounts("d.sock actual_state_of_world", "d.sock desired_state_of_world")

	driver.Stop()
	require.Equal(t, "deregister d", f.nextCall())
	again := f.driver("d", "../elsewhere/d.sock")
	require.Equal(t, "register d d", f.nextCall())
	require.True(t, f.answer(again).PluginRegistered)
}

func (f *fixture) failNext(errs ...error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.recordingHandler.fail = errs
}

func TestPluginOfAnotherTypeIsRefused(t *testing.T) {
	f := newFixture(t)
	driver := f.driver("d", "d.sock", func(c *fake.Config) { c.Type = registerapi.DRAPlugin })
	f.start()
	status := f.answer(driver)
	require.False(t, status.PluginRegistered)
	require.Contains(t, status.Error, `plugins of type "DRAPlugin" are not supported`)
	require.Empty(t, f.calls)
	f.requireCounts("d.sock desired_state_of_world")
}

func TestPluginThatMovesToAnotherSocketStays(t *testing.T) {
	f := newFixture(t)
	old := f.driver("d", "old.sock")
	f.start()
	require.Equal(t, "register d d", f.nextCall())
	f.answer(old)
	fresh := f.driver("d", "new.sock")
	require.Equal(t, "register d d", f.nextCall())
	f.answer(fresh)
	require.NoError(t, os.Remove(filepath.Join(f.dir, "old.sock")))
	third := f.driver("third", "third.sock") // its event comes after the removal's
	require.Equal(t, "register third third", f.nextCall())
	f.answer(third)
	require.Empty(t, f.calls, "the plugin is still there")
}

// TestSocketThatAnotherPluginTakesOver replaces a socket at once, so that it is never seen without one.
func TestSocketThatAnotherPluginTakesOver(t *testing.T) {
	f := newFixture(t)
	old := f.driver("old", "d.sock")
	f.start()
	require.Equal(t, "register old old", f.nextCall())
	f.answer(old)
	fresh := f.driver("fresh", ".d.sock")
	require.NoError(t, os.Rename(filepath.Join(f.dir, ".d.sock"), filepath.Join(f.dir, "d.sock")))
	require.Equal(t, "deregister old", f.nextCall())
	require.Equal(t, "register fresh fresh", f.nextCall())
	f.answer(fresh)
}

func TestSocketWithoutServer(t *testing.T) {
	f := newFixture(t)
	require.NoError(t, os.MkdirAll(f.dir, 0o755))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(f.dir, "dead.sock"), Net: "unix"})
	require.NoError(t, err)
	listener.SetUnlinkOnClose(false)
	require.NoError(t, listener.Close())
	f.start()
	driver := f.driver("d", "d.sock")
	require.Equal(t, "register d d", f.nextCall(), "others do not wait")
	require.True(t, f.answer(driver).PluginRegistered)
}
