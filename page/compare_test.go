package page

import (
	"fmt"
	"hash/maphash"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

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
	require.Equal(t, "In the newer half of these starts Image (container runtime) is slower by 290 ms than in the older one.",
		slowerText(compareStages(records)))
	require.Contains(t, slowerText(compareStages(records[:10])), "No stage became slower")
	require.Empty(t, slowerText(compareStages(records[:9])), "too few to say")
	require.Empty(t, compareStages(nil))
}

// TestTheLastStartsAreCompared has the oldest Pod change last, because it is deleted.
func TestTheLastStartsAreCompared(t *testing.T) {
	var records []timeline.Record
	for i, ready := range []time.Duration{time.Second, time.Hour, time.Minute} { // the one that changed last first
		records = append(records, startOf(i, ready))
	}
	var chosen []string
	for _, record := range (&hub{}).chosen(records, comparison{count: 2}) {
		chosen = append(chosen, string(record.Ref.UID))
	}
	require.Equal(t, []string{"1", "2"}, chosen, "the one that became ready last first")
}

func TestStartsAreComparedByOwner(t *testing.T) {
	controller := func(kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: name, Controller: ptr.To(true)}}
	}
	meta := func(name string, owners []metav1.OwnerReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("u" + name), OwnerReferences: owners}
	}
	recorder := timeline.New(clock.RealClock{}, 0)
	h, err := newHub(t.Context(), Deps{
		Connect: func() (kubernetes.Interface, error) {
			return fake.NewClientset(
				&appsv1.ReplicaSet{ObjectMeta: meta("web-1", controller("Deployment", "web"))},
				&corev1.Pod{ObjectMeta: meta("web-1-a", controller("ReplicaSet", "web-1"))},
				&corev1.Pod{ObjectMeta: meta("db-0", controller("StatefulSet", "db"))}), nil
		},
		Records: localRecords{recorder}, Clock: clock.RealClock{},
	}, Config{})
	require.NoError(t, err)
	defer h.close()
	var records []timeline.Record
	for i, name := range []string{"web-1-a", "web-1-gone", "db-0", "alone", "none-b"} {
		record := startOf(i, time.Duration(i+1)*100*time.Millisecond)
		record.Ref.Name = name
		records = append(records, record)
	}
	var lines []string
	for _, s := range h.compareOwners(records, comparison{count: 20, namespace: "shop"}) {
		lines = append(lines, strings.Join([]string{s.Name, fmt.Sprint(s.Count), s.P50, s.Longest, s.Link}, " | "))
	}
	require.Equal(t, []string{
		"pod shop/none-b | 1 | 600 ms | Image, 500 ms | /compare?n=20&ns=shop&owner=pod+shop%2Fnone-b",
		"pod shop/alone | 1 | 500 ms | Image, 400 ms | /compare?n=20&ns=shop&owner=pod+shop%2Falone",
		"statefulset shop/db | 1 | 400 ms | Image, 300 ms | /compare?n=20&ns=shop&owner=statefulset+shop%2Fdb",
		"deployment shop/web | 2 | 200 ms | Image, 100 ms | /compare?n=20&ns=shop&owner=deployment+shop%2Fweb",
	}, lines, "the deleted Pod of a ReplicaSet still belongs to it")
	require.Len(t, h.chosen(records, comparison{count: 20, owner: "deployment shop/web"}), 2)
	require.Len(t, h.chosen(records, comparison{count: 1}), 1)
	require.Empty(t, h.chosen(records, comparison{count: 20, namespace: "other"}))
	require.Empty(t, h.compareOwners(records[:2], comparison{}), "one owner needs no table")
	require.Equal(t, comparison{count: defaultCompared}, newComparison(url.Values{"n": {"-3"}}))
	recorder.Mark(records[0].Ref, "kubelet", timeline.StageReady, "", nil)
	page, err := h.comparePage(t.Context(), comparison{count: 20, owner: "deployment shop/web"})
	require.NoError(t, err)
	require.Contains(t, html(page), "of deployment shop/web alone")
}

func TestThePageCountsTheTimeThatASentenceBeginsWith(t *testing.T) {
	now := time.Now()
	for verdict, want := range map[string]string{
		"waiting 3.2 s: no node fits":                 "no node fits",
		"waiting 1h3m2s: image x cannot be pulled: y": "image x cannot be pulled: y",
		"deleting for 12.0 s: held by finalizer f":    "held by finalizer f",
		"not ready for 2m0s: it left":                 "it left",
		"waiting for an unknown time: x":              "waiting for an unknown time: x",
		"runs since 3.2 s: fine":                      "runs since 3.2 s: fine",
	} {
		require.Equal(t, want, newRowView(&explain.Explanation{Verdict: verdict, Since: now}, "a", now).Sentence)
		require.Equal(t, verdict, newRowView(&explain.Explanation{Verdict: verdict}, "a", now).Sentence, "no time stands beside it")
	}
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

// TestAnItemThatReturnsIsSentAgain has a browser remove an item that its list has no more.
func TestAnItemThatReturnsIsSentAgain(t *testing.T) {
	have := sent{seed: maphash.MakeSeed(), hashes: make(map[string]uint64)}
	list := func(items ...item) *document {
		return &document{Blocks: []block{{ID: "list", List: true, Items: items}}}
	}
	a, b := item{ID: "a", HTML: "A"}, item{ID: "b", HTML: "B"}
	have.diff(list(a, b))
	have.diff(list(b))
	u := have.diff(list(a, b))
	require.Equal(t, map[string]string{"a": "A"}, u.Items)
	require.Equal(t, map[string][]string{"list": {"a", "b"}}, u.Order)
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
