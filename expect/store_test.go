package expect_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/expect"
)

// The documented names and signatures: this fails to compile if one is lost or changes its type.
var (
	_ func() *expect.ExpectationsStore = expect.NewExpectationsStore
	_ func(any) (string, error)        = expect.ControlleeKeyFunc
	_ interface {
		DeleteExpectations(logger logr.Logger, controlleeKey string) error
		ExpectCreations(logger logr.Logger, controlleeKey string, uids ...types.UID) error
		ExpectDeletions(logger logr.Logger, controlleeKey string, uids ...types.UID) error
		GetCreateExpectations(controlleeKey string) []types.UID
		GetDeleteExpectations(controlleeKey string) []types.UID
		GetExpectations(controlleeKey string) (*expect.ControlleeExpectations, bool, error)
		HasDeleteExpectation(controlleeKey string, uid types.UID) bool
		ObserveDeletions(logger logr.Logger, controlleeKey string, uids ...types.UID)
		SyncExpectations(controlleeKey string, existingNonTerminatingUIDs []types.UID, existingTerminatingUIDs []types.UID)
	} = (*expect.ExpectationsStore)(nil)
)

const key = "ns/owner"

func ids(names string) []types.UID {
	list := []types.UID{}
	for name := range strings.FieldsSeq(names) {
		list = append(list, types.UID(name))
	}
	return list
}

// TestScenarios plays a line of steps on one key and compares what is expected afterwards. A step is a verb and
// UIDs: "+a b" creations, "-a" deletions, "!a" deletions observed, "=a|b" a sync with a live and b terminating.
func TestScenarios(t *testing.T) {
	for name, tc := range map[string]struct{ steps, creations, deletions string }{
		"creations":                               {"+a b", "a b", ""},
		"creations twice":                         {"+a b;+b c", "a b c", ""},
		"no uids makes the key known":             {"+", "", ""},
		"deletions":                               {"-a;-a b", "", "a b"},
		"deletion ends creation":                  {"+a b;-a", "b", "a"},
		"deletion wins over a later creation":     {"-a;+a b", "b", "a"},
		"observed":                                {"-a b;!a x", "", "b"},
		"observed ends creation too":              {"+a b;!a", "b", ""},
		"sync meets creations":                    {"+a b c;=a c|", "b", ""},
		"sync meets deletions":                    {"-a b;=b|", "", "b"},
		"sync keeps deletion of a live one":       {"-a;=a|", "", "a"},
		"sync counts terminating ones":            {"+;=a|b", "", "b"},
		"sync of nothing drops deletions":         {"-a b;=|", "", ""},
		"created, first seen terminating":         {"+a;=|a", "", "a"},
		"created, seen terminating, seen gone":    {"+a;=|a;=|", "", ""},
		"terminating one stops being expected":    {"+;=|a;=|b", "", "b"},
		"re-expected after it was met":            {"+a;=a|;+a", "a", ""},
		"deletion after a sync that saw creation": {"+a b;=a|;-a", "b", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			store := expect.NewExpectationsStore()
			for step := range strings.SplitSeq(tc.steps, ";") {
				live, terminating, _ := strings.Cut(step[1:], "|")
				switch step[0] {
				case '+':
					require.NoError(t, store.ExpectCreations(logr.Discard(), key, ids(live)...))
				case '-':
					require.NoError(t, store.ExpectDeletions(logr.Discard(), key, ids(live)...))
				case '!':
					store.ObserveDeletions(logr.Discard(), key, ids(live)...)
				case '=':
					store.SyncExpectations(key, ids(live), ids(terminating))
				}
			}
			require.Equal(t, ids(tc.creations), store.GetCreateExpectations(key))
			require.Equal(t, ids(tc.deletions), store.GetDeleteExpectations(key))
			for _, uid := range ids("a b c x") {
				require.Equal(t, strings.Contains(tc.deletions, string(uid)), store.HasDeleteExpectation(key, uid))
			}
			expectations, known, err := store.GetExpectations(key)
			require.NoError(t, err)
			require.True(t, known)
			require.Equal(t, ids(tc.creations), expectations.Creations())
			require.Equal(t, ids(tc.deletions), expectations.Deletions())
		})
	}
}

func TestUnknownKey(t *testing.T) {
	store := expect.NewExpectationsStore()
	store.SyncExpectations(key, ids("a"), ids("b"))
	store.ObserveDeletions(logr.Discard(), key, "a")
	require.NoError(t, store.DeleteExpectations(logr.Discard(), key))
	expectations, known, err := store.GetExpectations(key)
	require.Nil(t, expectations)
	require.False(t, known)
	require.NoError(t, err)
	require.Nil(t, store.GetCreateExpectations(key))
	require.Nil(t, store.GetDeleteExpectations(key))
	require.False(t, store.HasDeleteExpectation(key, "b"))
	require.Zero(t, store.Size())
}

func TestKeysAreIndependentAndDeletable(t *testing.T) {
	store := expect.NewExpectationsStore()
	for _, other := range []string{"", key, "ns/other"} {
		require.NoError(t, store.ExpectCreations(logr.Discard(), other, "a"))
	}
	require.NoError(t, store.DeleteExpectations(logr.Discard(), key))
	require.Nil(t, store.GetCreateExpectations(key))
	require.Equal(t, ids("a"), store.GetCreateExpectations(""))
	require.Equal(t, ids("a"), store.GetCreateExpectations("ns/other"))
}

func TestSnapshotsDoNotChange(t *testing.T) {
	store := expect.NewExpectationsStore()
	require.NoError(t, store.ExpectCreations(logr.Discard(), key, "a", "b"))
	require.NoError(t, store.ExpectDeletions(logr.Discard(), key, "c"))
	before, _, _ := store.GetExpectations(key)
	creations := store.GetCreateExpectations(key)
	store.SyncExpectations(key, ids("a b"), nil)
	require.NoError(t, store.ExpectCreations(logr.Discard(), key, "d"))
	require.Equal(t, ids("a b"), creations)
	require.Equal(t, ids("a b"), before.Creations())
	require.Equal(t, ids("c"), before.Deletions())
	require.Equal(t, ids("d"), store.GetCreateExpectations(key))
}

func TestCreationsNeverSeenAreReleased(t *testing.T) {
	t.Run("by resource version", func(t *testing.T) {
		store := expect.NewExpectationsStore()
		require.NoError(t, store.ExpectCreationsAt(logr.Discard(), key, "9", "old"))
		require.NoError(t, store.ExpectCreationsAt(logr.Discard(), key, "100", "new"))
		require.NoError(t, store.ExpectCreations(logr.Discard(), key, "unversioned"))
		store.SyncExpectationsAt(key, "8", nil, nil)
		require.Equal(t, ids("new old unversioned"), store.GetCreateExpectations(key))
		store.SyncExpectationsAt(key, "not a number", nil, nil)
		require.Equal(t, ids("new old unversioned"), store.GetCreateExpectations(key))
		store.SyncExpectationsAt(key, "99", nil, nil)
		require.Equal(t, ids("new unversioned"), store.GetCreateExpectations(key))
		store.SyncExpectationsAt(key, "100", nil, nil)
		require.Equal(t, ids("unversioned"), store.GetCreateExpectations(key))
	})
	t.Run("by age", func(t *testing.T) {
		clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
		store := expect.NewExpectationsStoreWithOptions(expect.Options{CreationTTL: time.Minute, Clock: clock})
		require.NoError(t, store.ExpectCreations(logr.Discard(), key, "a"))
		clock.SetTime(time.Unix(60, 0))
		require.NoError(t, store.ExpectCreations(logr.Discard(), key, "b"))
		store.SyncExpectations(key, nil, nil)
		require.Equal(t, ids("a b"), store.GetCreateExpectations(key))
		clock.SetTime(time.Unix(61, 0))
		store.SyncExpectations(key, nil, nil)
		require.Equal(t, ids("b"), store.GetCreateExpectations(key))
	})
}

func TestMetKeysDoNotPileUp(t *testing.T) {
	store := expect.NewExpectationsStore()
	require.NoError(t, store.ExpectCreations(logr.Discard(), key, "kept"))
	const owners = 200_000
	for i := range owners {
		owner := fmt.Sprint("ns/", i)
		require.NoError(t, store.ExpectCreations(logr.Discard(), owner, "a"))
		store.SyncExpectations(owner, ids("a"), nil)
	}
	// 64 shards, each of which forgets when three quarters of 256 slots are taken: some 2 MB. With much less, a store
	// whose 10,000 owners are all alive would forget and make anew at every write.
	const maxKeys = 64 * 192
	require.LessOrEqual(t, store.Size().Keys, maxKeys+1)
	require.Equal(t, ids("kept"), store.GetCreateExpectations(key))
}

func TestControlleeKeyFunc(t *testing.T) {
	for want, obj := range map[string]any{
		"ns/name": &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "name"}},
		"name":    &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "name"}},
		"its/own": cache.DeletedFinalStateUnknown{Key: "its/own"},
	} {
		got, err := expect.ControlleeKeyFunc(obj)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err := expect.ControlleeKeyFunc(42)
	require.Error(t, err)
}

func TestLogsAtLevelFourOnly(t *testing.T) {
	for level, want := range map[int]int{3: 0, 4: 4} {
		lines := 0
		logger := funcr.New(func(string, string) { lines++ }, funcr.Options{Verbosity: level})
		store := expect.NewExpectationsStore()
		require.NoError(t, store.ExpectCreations(logger, key, "a"))
		require.NoError(t, store.ExpectDeletions(logger, key, "a"))
		store.ObserveDeletions(logger, key, "a")
		require.NoError(t, store.DeleteExpectations(logger, key))
		require.NoError(t, store.DeleteExpectations(logger, key)) // nothing there: nothing to say
		require.Equal(t, want, lines, "at level %d", level)
	}
}

func TestCollector(t *testing.T) {
	store := expect.NewExpectationsStore()
	require.NoError(t, store.ExpectCreations(logr.Discard(), key, "a", "b"))
	require.NoError(t, store.ExpectDeletions(logr.Discard(), "ns/x", "c"))
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(expect.NewCollector("test", store)))
	families, err := registry.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, family := range families {
		metric := family.GetMetric()[0]
		require.Equal(t, "controller", metric.GetLabel()[0].GetName())
		require.Equal(t, "test", metric.GetLabel()[0].GetValue())
		got[family.GetName()] = metric.GetGauge().GetValue()
	}
	require.Equal(t, map[string]float64{
		"berth_expectations_keys": 2, "berth_expectations_creations": 2, "berth_expectations_deletions": 1,
	}, got)
}

func TestReadsAllocateNothing(t *testing.T) {
	store := expect.NewExpectationsStore()
	require.NoError(t, store.ExpectCreations(logr.Discard(), key, ids("a b c")...))
	require.NoError(t, store.ExpectDeletions(logr.Discard(), key, ids("d e")...))
	require.NotEmpty(t, store.GetCreateExpectations(key)) // takes the snapshot
	live := ids("x y")
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		_ = store.GetCreateExpectations(key)
		_ = store.GetDeleteExpectations(key)
		_, _, _ = store.GetExpectations(key)
		_ = store.HasDeleteExpectation(key, "d")
		_ = store.HasDeleteExpectation("unknown", "d")
	}))
	require.Zero(t, testing.AllocsPerRun(1000, func() { // a sync that meets nothing leaves the snapshot as it is
		store.SyncExpectations(key, live, nil)
		_ = store.GetCreateExpectations(key)
	}))
	require.NoError(t, store.DeleteExpectations(logr.Discard(), key))
	require.NoError(t, store.ExpectCreations(logr.Discard(), key))
	require.Zero(t, testing.AllocsPerRun(1000, func() { store.SyncExpectations(key, live, nil) }))
}

// TestConcurrentUse lets 64 goroutines do everything on few keys. It proves its point under -race, and without it
// by not dying of concurrent map access.
func TestConcurrentUse(t *testing.T) {
	store := expect.NewExpectationsStore()
	var group sync.WaitGroup
	for worker := range 64 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(worker)))
			for range 500 {
				owner := fmt.Sprint("ns/", random.IntN(3))
				uid := types.UID(fmt.Sprint(random.IntN(20)))
				switch random.IntN(7) {
				case 0:
					_ = store.ExpectCreations(logr.Discard(), owner, uid)
				case 1:
					_ = store.ExpectDeletions(logr.Discard(), owner, uid)
				case 2:
					store.ObserveDeletions(logr.Discard(), owner, uid)
				case 3:
					store.SyncExpectations(owner, []types.UID{uid}, nil)
				case 4:
					_ = store.DeleteExpectations(logr.Discard(), owner)
				default:
					deletions := store.GetDeleteExpectations(owner)
					for _, created := range store.GetCreateExpectations(owner) {
						_ = store.HasDeleteExpectation(owner, created)
					}
					_ = len(deletions) + store.Size().Keys
				}
			}
		})
	}
	group.Wait()
	// An update that returned is never lost: each goroutine's own UIDs are all there at the end.
	for worker := range 64 {
		group.Go(func() {
			for i := range 50 {
				_ = store.ExpectCreations(logr.Discard(), "ns/last", types.UID(fmt.Sprint(worker, "-", i)))
			}
		})
	}
	group.Wait()
	require.Len(t, store.GetCreateExpectations("ns/last"), 64*50)
}

// TestNothingIsLostWhileTablesAreReplaced lets a few owners live through many cycles while others come and go by
// the thousand, so that the entries of the few are left out of new tables whenever they expect nothing.
func TestNothingIsLostWhileTablesAreReplaced(t *testing.T) {
	store := expect.NewExpectationsStore()
	var owners, crowd sync.WaitGroup
	var done atomic.Bool
	for worker := range 2 {
		crowd.Go(func() {
			for i := 0; !done.Load(); i++ {
				_ = store.ExpectCreations(logr.Discard(), fmt.Sprint("crowd/", worker, "-", i))
			}
		})
	}
	for worker := range 8 {
		owners.Go(func() {
			owner := fmt.Sprint("ns/", worker)
			for i := range 5000 {
				uid := types.UID(fmt.Sprint(i))
				_ = store.ExpectCreations(logr.Discard(), owner, uid)
				if got := store.GetCreateExpectations(owner); len(got) != 1 || got[0] != uid {
					t.Errorf("%s expects %v after the creation of %s", owner, got, uid)
				}
				store.SyncExpectations(owner, []types.UID{uid}, nil)
				if got := store.GetCreateExpectations(owner); len(got) != 0 {
					t.Errorf("%s expects %v after all was seen", owner, got)
				}
			}
		})
	}
	owners.Wait()
	done.Store(true)
	crowd.Wait()
}
