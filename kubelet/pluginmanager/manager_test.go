package pluginmanager_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/pluginmanager"
	volumecsi "github.com/berth-dev/berth/volume/csi"
	"github.com/berth-dev/berth/volume/csi/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = time.Minute

// handler notes what it is told.
type handler struct {
	told chan string
	mu   sync.Mutex
	fail []error // what the next calls of Register return
}

func (h *handler) Register(_ context.Context, plugin pluginmanager.Plugin) error {
	h.told <- "register " + plugin.Name + " " + filepath.Base(filepath.Dir(plugin.Endpoint))
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.fail) == 0 {
		return nil
	}
	err := h.fail[0]
	h.fail = h.fail[1:]
	return err
}

func (h *handler) Deregister(_ context.Context, plugin pluginmanager.Plugin) error {
	h.told <- "deregister " + plugin.Name
	return nil
}

type world struct {
	*handler
	t     *testing.T
	dir   string
	base  string
	clock *testclock.FakeClock
}

func newWorld(t *testing.T) *world {
	base, err := os.MkdirTemp("", "plugins") // t.TempDir may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(base)) })
	return &world{
		t: t, base: base, dir: filepath.Join(base, "registry"), clock: testclock.NewFakeClock(time.Now()),
		handler: &handler{told: make(chan string, 100)},
	}
}

// start starts a node agent, and returns what ends it.
func (w *world) start() (stop func()) {
	w.t.Helper()
	// Whoever does not answer in time is asked again when the clock has gone on: here it stands still.
	manager, err := pluginmanager.New(pluginmanager.Config{Dir: w.dir, AskTimeout: soon}, pluginmanager.Deps{
		Handlers: map[string]pluginmanager.Handler{registerapi.CSIPlugin: w.handler}, Clock: w.clock,
	})
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- manager.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.t, <-done)
	})
	w.t.Cleanup(stop)
	return stop
}

// driver serves a driver with its registration socket at the path below the directory.
func (w *world) driver(name, socket string, change ...func(*fake.Config)) *fake.Driver {
	w.t.Helper()
	config := fake.Config{Name: name, NodeID: "id", Dir: filepath.Join(w.base, name)}
	for _, f := range change {
		f(&config)
	}
	driver := fake.New(config)
	path := filepath.Join(w.dir, socket)
	require.NoError(w.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(w.t, driver.Serve(path))
	w.t.Cleanup(driver.Stop)
	return driver
}

func (w *world) next() string {
	w.t.Helper()
	select {
	case told := <-w.told:
		return told
	case <-time.After(soon):
		w.t.Fatal("the handler was told nothing")
		return ""
	}
}

func (w *world) answer(driver *fake.Driver) *registerapi.RegistrationStatus {
	w.t.Helper()
	select {
	case status := <-driver.Notified():
		return status
	case <-time.After(soon):
		w.t.Fatal("the plugin was told nothing")
		return nil
	}
}

func TestPluginsComeAndGo(t *testing.T) {
	w := newWorld(t)
	first := w.driver("first", "first.sock")
	stop := w.start()
	require.Equal(t, "register first first", w.next())
	require.True(t, w.answer(first).PluginRegistered)

	second := w.driver("second", "deep/down/second.sock")
	require.Equal(t, "register second second", w.next(), "directories below are watched")
	require.True(t, w.answer(second).PluginRegistered)

	w.driver("hidden", ".hidden.sock")
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "file.sock"), nil, 0o600))
	second.Stop()
	require.Equal(t, "deregister second", w.next())

	require.NoError(t, first.Serve("")) // the node's socket made anew is not ours to notice
	first.Stop()
	require.Equal(t, "deregister first", w.next())
	again := w.driver("first", "first.sock")
	require.Equal(t, "register first first", w.next())
	require.True(t, w.answer(again).PluginRegistered)

	stop()
	require.Empty(t, w.told, "plugins stay when the node agent ends")
	w.start()
	require.Equal(t, "register first first", w.next(), "and a new one finds them")
}

func TestPluginThatFailsIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.failNext(errors.New("not now"))
	driver := w.driver("d", "d.sock")
	w.start()
	require.Equal(t, "register d d", w.next())
	status := w.answer(driver)
	require.False(t, status.PluginRegistered)
	require.Contains(t, status.Error, "not now")
	require.Eventually(t, func() bool {
		w.clock.Step(10 * time.Millisecond)
		return len(w.told) > 0
	}, soon, time.Millisecond)
	require.Equal(t, "register d d", w.next())
	require.True(t, w.answer(driver).PluginRegistered)
}

// TestAPluginMayLieDeep has its sockets at paths that no address holds.
func TestAPluginMayLieDeep(t *testing.T) {
	w := newWorld(t)
	deep := strings.Repeat("d", 120)
	w.dir = filepath.Join(w.base, deep)
	driver := w.driver("d", "d.sock", func(c *fake.Config) { c.Dir = filepath.Join(w.base, deep+"-plugin") })
	w.start()
	require.Equal(t, "register d "+deep+"-plugin", w.next())
	require.True(t, w.answer(driver).PluginRegistered)
	endpoint := driver.Endpoint()
	require.Greater(t, len(endpoint), 120)
	connected, err := volumecsi.Dial(t.Context(), "d", endpoint)
	require.NoError(t, err)
	require.NoError(t, connected.Close())
	driver.Stop()
	require.Equal(t, "deregister d", w.next())
}

func (w *world) failNext(errs ...error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handler.fail = errs
}

func TestPluginOfAnotherTypeIsRefused(t *testing.T) {
	w := newWorld(t)
	driver := w.driver("d", "d.sock", func(c *fake.Config) { c.Type = registerapi.DRAPlugin })
	w.start()
	status := w.answer(driver)
	require.False(t, status.PluginRegistered)
	require.Contains(t, status.Error, `plugins of type "DRAPlugin" are not supported`)
	require.Empty(t, w.told)
}

func TestPluginThatMovesToAnotherSocketStays(t *testing.T) {
	w := newWorld(t)
	old := w.driver("d", "old.sock")
	w.start()
	require.Equal(t, "register d d", w.next())
	w.answer(old)
	fresh := w.driver("d", "new.sock")
	require.Equal(t, "register d d", w.next())
	w.answer(fresh)
	require.NoError(t, os.Remove(filepath.Join(w.dir, "old.sock")))
	third := w.driver("third", "third.sock") // its event comes after the removal's
	require.Equal(t, "register third third", w.next())
	w.answer(third)
	require.Empty(t, w.told, "the plugin is still there")
}

func TestSocketThatNobodyServes(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.MkdirAll(w.dir, 0o755))
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(w.dir, "dead.sock"), Net: "unix"})
	require.NoError(t, err)
	listener.SetUnlinkOnClose(false)
	require.NoError(t, listener.Close())
	w.start()
	driver := w.driver("d", "d.sock")
	require.Equal(t, "register d d", w.next(), "others do not wait")
	require.True(t, w.answer(driver).PluginRegistered)
}
