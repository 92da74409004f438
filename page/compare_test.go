package page

import (
	"fmt"
	"hash/maphash"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/timeline"
)

// startOf returns the record of a Pod whose image took that long.
func startOf(number int, image time.Duration) timeline.Record {
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ready := begin.Add(100*time.Millisecond + image)
	return timeline.Record{
		Ref: timeline.Ref{Kind: "Pod", Namespace: "shop", Name: "web", UID: types.UID(fmt.Sprint(number))},
		Stages: []timeline.Stage{
			{Name: timeline.StageAccepted, Owner: "api", Start: begin, End: begin},
			{Name: timeline.StageImage, Owner: "kubelet", Start: begin.Add(100 * time.Millisecond), End: ready},
			{Name: timeline.StageReady, Owner: "kubelet", Start: ready, End: ready},
			{Name: timeline.StageImage, Owner: "kubelet", Attempt: 2, Start: ready.Add(time.Hour), End: ready.Add(2 * time.Hour)},
		},
	}
}

func TestCompareFindsTheStageThatGotSlower(t *testing.T) {
	var records []timeline.Record
	for i := range 20 { // the newest first
		image := time.Duration(100+i) * time.Millisecond
		if i < 10 {
			image += 300 * time.Millisecond
		}
		records = append(records, startOf(i, image))
	}
	var lines []string
	for _, s := range compareStages(records) {
		lines = append(lines, strings.Join([]string{s.Name, s.Holder, fmt.Sprint(s.Count), s.P50, s.P95, s.P99, s.Change}, ", "))
	}
	require.Equal(t, []string{
		"Whole start, , 20, 219 ms, 508 ms, 509 ms, slower by 290 ms",
		"Image, container runtime, 20, 119 ms, 408 ms, 409 ms, slower by 290 ms",
	}, lines, "what came after the start does not count, nor do moments")
	require.Empty(t, compareStages(nil))
}

func TestPathsNameViews(t *testing.T) {
	for path, want := range map[string]string{
		"/": "now ", "/cluster": "cluster ", "/compare?n=5": "compare ", "/pod/a/b": "object Pod a/b", "/pods/a/b": "object Pod a/b", "/node/n": "object Node /n",
		"/pod/a": "", "/node/a/b": "", "/x": "", "/pod/a/b/c": "",
	} {
		u, err := url.Parse(path)
		require.NoError(t, err)
		v, ok := parseView(u)
		require.Equal(t, want != "", ok, path)
		if ok {
			text := v.name + " "
			if v.kind != "" {
				text += v.kind + " " + v.namespace + "/" + v.what
			}
			require.Equal(t, want, text)
		}
	}
	require.Equal(t, "/pod/a/b%2F..", link("Pod", "a", "b/.."))
	require.Empty(t, link("StatefulSet", "a", "b"))
}

func TestAPageReceivesOnlyWhatIsNew(t *testing.T) {
	have := sent{seed: maphash.MakeSeed(), hashes: make(map[string]uint64)}
	first := &document{Blocks: []block{{ID: "head", HTML: "1"}, {ID: "list", List: true, Items: []item{{ID: "a", HTML: "A"}, {ID: "b", HTML: "B"}}}}}
	u := have.diff(first)
	require.Equal(t, update{Blocks: map[string]string{"head": "1"}, Items: map[string]string{"a": "A", "b": "B"}, Order: map[string][]string{"list": {"a", "b"}}}, u)
	require.True(t, have.diff(first).empty())
	second := &document{Blocks: []block{{ID: "head", HTML: "1"}, {ID: "list", List: true, Items: []item{{ID: "b", HTML: "B2"}}}}}
	require.Equal(t, update{Blocks: map[string]string{}, Items: map[string]string{"b": "B2"}, Order: map[string][]string{"list": {"b"}}}, have.diff(second))
}

func TestAnElapsedTimeIsNoNews(t *testing.T) {
	have := sent{seed: maphash.MakeSeed(), hashes: make(map[string]uint64)}
	list := func(text, age string) *document {
		return &document{Blocks: []block{{ID: "list", List: true, Items: []item{{ID: "a", HTML: "<li>" + text + "<span>" + age + "</span></li>", Age: age}}}}}
	}
	require.False(t, have.diff(list("waits", "9 s")).empty())
	require.True(t, have.diff(list("waits", "10 s")).empty(), "the browser counts by itself")
	require.Equal(t, map[string]string{"a": "<li>runs<span>10 s</span></li>"}, have.diff(list("runs", "10 s")).Items)
}

func TestARowThatHasWaitedForLongStaysLonger(t *testing.T) {
	now := time.Now()
	for since, want := range map[time.Duration]time.Duration{
		time.Second: rowLifetime, 5 * time.Minute: 30 * time.Second, time.Hour: maxRowLifetime,
	} {
		r := &row{explanation: &explain.Explanation{Since: now.Add(-since)}}
		require.Equal(t, want, r.lifetime(now))
	}
	require.Equal(t, rowLifetime, (&row{explanation: &explain.Explanation{}}).lifetime(now), "since when is unknown")
}
