package config_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/config"
)

func newStatic(t *testing.T, r *recorder) *config.Static {
	s, err := config.NewStatic(config.StaticDeps{Handle: r.HandlePod})
	require.NoError(t, err)
	return s
}

func TestOnePodPerName(t *testing.T) {
	r := &recorder{}
	s := newStatic(t, r)
	one, two, three := pod("p", "one", 0), pod("p", "two", 0), pod("p", "three", 0)
	s.Replace("file", []*corev1.Pod{one})
	s.Replace("file", []*corev1.Pod{one})
	require.Equal(t, []string{"ADD one"}, r.drain(), "once")
	s.Replace("file", []*corev1.Pod{two})
	require.Equal(t, []string{"DELETE one", "REMOVE one"}, r.drain(), "two waits")
	require.NotNil(t, r.last.DeletionTimestamp, "ended with its own grace")
	s.Replace("http", []*corev1.Pod{three})
	require.Empty(t, r.drain(), "three waits behind two")
	s.PodGone("one")
	require.Equal(t, []string{"ADD two"}, r.drain())
	s.Replace("file", nil)
	s.PodGone("two")
	require.Equal(t, []string{"DELETE two", "REMOVE two", "ADD three"}, r.drain())
	s.PodGone("unknown")
	require.Empty(t, r.drain())
}

func TestNameThatIsTakenInItsOwnSource(t *testing.T) {
	r, refused := &recorder{}, []string{}
	s, err := config.NewStatic(config.StaticDeps{Handle: r.HandlePod, OnConflict: func(pod *corev1.Pod, message string) {
		refused = append(refused, string(pod.UID)+": "+message)
	}})
	require.NoError(t, err)
	both := []*corev1.Pod{pod("p", "one", 0), pod("p", "two", 0)}
	s.Replace("file", both)
	s.Replace("file", both)
	require.Equal(t, []string{"ADD one"}, r.drain(), "the first is kept")
	require.Len(t, refused, 1, "and the conflict is reported once")
	require.Contains(t, refused[0], `two: Error validating pod ns/p from file due to duplicate pod name "p"`)
	s.Replace("http", []*corev1.Pod{pod("p", "three", 0)})
	s.Replace("file", nil)
	s.Replace("file", []*corev1.Pod{pod("p", "four", 0)})
	require.Len(t, refused, 1, "who waits for one that ends, or for another source's, is no mistake")
}

func TestTakenBackWhileEnding(t *testing.T) {
	r := &recorder{}
	s := newStatic(t, r)
	one, two := pod("p", "one", 0), pod("p", "two", 0)
	s.Replace("file", []*corev1.Pod{one})
	s.Replace("file", []*corev1.Pod{two})
	s.Replace("file", []*corev1.Pod{one})
	require.Equal(t, []string{"ADD one", "DELETE one", "REMOVE one"}, r.drain(), "what was only waiting never was")
	s.PodGone("one")
	require.Equal(t, []string{"ADD one"}, r.drain(), "the same pod may run again")
}

func TestUIDOfTwoPods(t *testing.T) {
	r := &recorder{}
	s := newStatic(t, r)
	s.Replace("file", []*corev1.Pod{pod("a", "u", 0)})
	s.Replace("http", []*corev1.Pod{pod("b", "u", 0)})
	require.Equal(t, []string{"ADD u"}, r.drain())
	require.Equal(t, "a", r.last.Name)
	changed := pod("a", "u", 0)
	changed.Labels = map[string]string{"x": "y"}
	s.Replace("file", []*corev1.Pod{changed})
	require.Equal(t, []string{"UPDATE u"}, r.drain())
	s.Replace("file", []*corev1.Pod{pod("c", "u", 0)})
	require.Equal(t, []string{"DELETE u", "REMOVE u"}, r.drain(), "renamed: another pod, after the first")
	s.PodGone("u")
	require.Equal(t, []string{"ADD u"}, r.drain())
	require.Equal(t, "c", r.last.Name)

	s.Replace("file", []*corev1.Pod{pod("d", "u", 0)})
	require.Equal(t, []string{"DELETE u", "REMOVE u"}, r.drain())
	s.Replace("http", []*corev1.Pod{pod("d", "v", 0)})
	require.Equal(t, []string{"ADD v"}, r.drain(), "the name is free, and its own UID too")
	s.PodGone("u")
	require.Empty(t, r.drain(), "u waits for the name now")
	s.Replace("http", nil)
	s.PodGone("v")
	require.Equal(t, []string{"DELETE v", "REMOVE v", "ADD u"}, r.drain())
	require.Equal(t, "d", r.last.Name)
}

// source runs a File or an HTTP, and passes on the names of the Pods it finds.
type source interface {
	Start(ctx context.Context) error
}

func run(t *testing.T, s source) {
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { _ = s.Start(ctx) })
	t.Cleanup(func() { cancel(); group.Wait() })
}

// podNames keeps what a source gave last.
type podNames struct {
	mu   sync.Mutex
	last []string
	sets int
}

func (n *podNames) set(pods []*corev1.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last, n.sets = nil, n.sets+1
	for _, pod := range pods {
		n.last = append(n.last, pod.Name)
	}
}

func (n *podNames) require(t *testing.T, want ...string) {
	t.Helper()
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		n.mu.Lock()
		defer n.mu.Unlock()
		require.Positive(c, n.sets)
		require.Equal(c, want, n.last)
	}, time.Minute, time.Millisecond)
}

func newFile(t *testing.T, path string, n *podNames) *config.File {
	// Twenty seconds never pass here: what is seen is seen by an event.
	f, err := config.NewFile(config.FileDeps{Set: n.set}, config.FileConfig{Path: path, NodeName: "n"})
	require.NoError(t, err)
	return f
}

func write(t *testing.T, path, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}

func TestDirectoryIsFollowed(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "later", "pods")
	n := &podNames{}
	run(t, newFile(t, dir, n))
	n.require(t)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	write(t, filepath.Join(dir, "a.yaml"), manifest("a"))
	n.require(t, "a-n")
	write(t, filepath.Join(dir, "b.json"), manifest("b"))
	n.require(t, "a-n", "b-n")
	write(t, filepath.Join(dir, "a.yaml"), manifest("renamed"))
	n.require(t, "renamed-n", "b-n")
	require.NoError(t, os.Rename(filepath.Join(dir, "b.json"), filepath.Join(base, "b.json")))
	n.require(t, "renamed-n")
	require.NoError(t, os.RemoveAll(dir))
	n.require(t)
	require.NoError(t, os.Mkdir(dir, 0o700))
	write(t, filepath.Join(dir, "c"), manifest("c"))
	n.require(t, "c-n")
}

// TestRemovedManifestThatIsPutBack removes a file and writes it again at once. Its Pod starts over, and others stay.
func TestRemovedManifestThatIsPutBack(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, manifest("a"))
	write(t, filepath.Join(dir, "b.yaml"), manifest("b"))
	var mu sync.Mutex
	var sets []string
	f, err := config.NewFile(config.FileDeps{Set: func(pods []*corev1.Pod) {
		mu.Lock()
		defer mu.Unlock()
		var names []string
		for _, pod := range pods {
			names = append(names, pod.Name)
		}
		sets = append(sets, strings.Join(names, " "))
	}}, config.FileConfig{Path: dir, NodeName: "n"})
	require.NoError(t, err)
	run(t, f)
	seen := func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(sets)
	}
	require.Eventually(t, func() bool { return len(seen()) > 0 }, time.Minute, time.Millisecond)
	require.NoError(t, os.Remove(path))
	write(t, path, manifest("a"))
	require.Eventually(t, func() bool {
		all := seen()
		return slices.Contains(all, "b-n") && all[len(all)-1] == "a-n b-n"
	}, time.Minute, time.Millisecond)
}

func TestSingleFileIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pod.yaml")
	n := &podNames{}
	run(t, newFile(t, path, n))
	n.require(t)
	write(t, path, manifest("a"))
	n.require(t, "a-n")
	require.NoError(t, os.Remove(path))
	n.require(t)
}

func TestHostileFilesDoNotAffectOthers(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, ".hidden"), manifest("hidden"))
	write(t, filepath.Join(dir, "broken"), "{{{")
	write(t, filepath.Join(dir, "binary"), "\x00\xff\xfe")
	write(t, filepath.Join(dir, "bomb"), "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\n"+
		"d: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f]\n")
	write(t, filepath.Join(dir, "deep"), strings.Repeat("[", 100_000))
	write(t, filepath.Join(dir, "unreadable"), manifest("unreadable", "  serviceAccountName: x"))
	require.NoError(t, os.Truncate(filepath.Join(dir, "unreadable"), 11<<20))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	require.NoError(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	require.NoError(t, os.Symlink("/nowhere", filepath.Join(dir, "dangling")))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(dir, "endless")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	write(t, filepath.Join(dir, "sub", "in.yaml"), manifest("sub"))
	write(t, filepath.Join(dir, "good.yaml"), manifest("good"))
	n := &podNames{}
	run(t, newFile(t, dir, n))
	n.require(t, "good-n")
	write(t, filepath.Join(dir, "zz.yaml"), manifest("last"))
	n.require(t, "good-n", "last-n")
}

func TestHalfWrittenManifestKeepsPods(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, manifest("a"))
	n := &podNames{}
	run(t, newFile(t, dir, n))
	n.require(t, "a-n")
	for _, half := range []string{"", "apiVersion: v1\nkind: Po", manifest("a")[:40]} {
		write(t, path, half)
		write(t, filepath.Join(dir, "mark.yaml"), manifest(fmt.Sprintf("mark%d", len(half))))
		n.require(t, "a-n", fmt.Sprintf("mark%d-n", len(half)))
	}
	write(t, path, manifest("b"))
	n.require(t, "b-n", "mark40-n")
}

func TestURL(t *testing.T) {
	var body atomic.Value
	var code atomic.Int32
	body.Store(manifest("a"))
	code.Store(http.StatusOK)
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Manifest") != "please" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.WriteHeader(int(code.Load()))
		_, _ = w.Write([]byte(body.Load().(string)))
		asked.Add(1)
	}))
	defer server.Close()
	clock := clocktesting.NewFakeClock(time.Now())
	n := &podNames{}
	h, err := config.NewHTTP(config.HTTPDeps{Set: n.set, Clock: clock, Transport: &http.Transport{DisableKeepAlives: true}}, config.HTTPConfig{
		URL: server.URL, NodeName: "n", Header: http.Header{"Manifest": {"please"}}, Period: time.Minute,
	})
	require.NoError(t, err)
	run(t, h)
	n.require(t, "a-n")
	again := func(status int, content string) {
		before := asked.Load()
		code.Store(int32(status))
		body.Store(content)
		clock.Step(time.Minute)
		require.Eventually(t, func() bool { return asked.Load() > before }, time.Minute, time.Millisecond)
	}
	again(http.StatusOK, manifest("a"))
	again(http.StatusInternalServerError, manifest("b"))
	again(http.StatusOK, "{{{")
	again(http.StatusOK, manifest("c"))
	n.require(t, "c-n")
	n.mu.Lock()
	require.Equal(t, 2, n.sets, "neither the same again, nor a failure, nor what is broken")
	n.mu.Unlock()
	again(http.StatusOK, "")
	n.require(t)
}

func TestSourcesAreChecked(t *testing.T) {
	set := func([]*corev1.Pod) {}
	for _, path := range []string{"", "relative"} {
		_, err := config.NewFile(config.FileDeps{Set: set}, config.FileConfig{Path: path})
		require.ErrorContains(t, err, "absolute")
	}
	for _, url := range []string{"", "ftp://x", "http://"} {
		_, err := config.NewHTTP(config.HTTPDeps{Set: set}, config.HTTPConfig{URL: url})
		require.Error(t, err, url)
	}
}
