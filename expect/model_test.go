package expect_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/expect"
)

type set map[types.UID]bool

func (s set) list() []types.UID { return append([]types.UID{}, slices.Sorted(maps.Keys(s))...) }

// model is the store for one key in the simplest words.
type model struct {
	known                bool
	creations, deletions set
}

func (m *model) sync(live, terminating set) {
	if !m.known {
		return
	}
	deletions := maps.Clone(terminating)
	for uid := range live {
		if m.deletions[uid] {
			deletions[uid] = true
		}
	}
	m.deletions = deletions
	maps.DeleteFunc(m.creations, func(uid types.UID, _ bool) bool { return live[uid] || terminating[uid] })
}

func some(random *rand.Rand) set {
	picked := set{}
	for range random.IntN(4) {
		picked[types.UID('a'+rune(random.IntN(8)))] = true
	}
	return picked
}

// TestAgainstModel compares the store with the model after each of many random steps.
func TestAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		store := expect.NewExpectationsStore()
		m := model{creations: set{}, deletions: set{}}
		for range 100 {
			uids := some(random)
			switch random.IntN(6) {
			case 0, 1:
				require.NoError(t, store.ExpectCreations(logr.Discard(), key, uids.list()...))
				m.known = true
				for uid := range uids {
					if !m.deletions[uid] {
						m.creations[uid] = true
					}
				}
			case 2:
				require.NoError(t, store.ExpectDeletions(logr.Discard(), key, uids.list()...))
				m.known = true
				for uid := range uids {
					m.deletions[uid] = true
					delete(m.creations, uid)
				}
			case 3:
				store.ObserveDeletions(logr.Discard(), key, uids.list()...)
				for uid := range uids {
					delete(m.deletions, uid)
					delete(m.creations, uid)
				}
			case 4:
				terminating := some(random)
				for uid := range terminating {
					delete(uids, uid)
				}
				store.SyncExpectations(key, uids.list(), terminating.list())
				m.sync(uids, terminating)
			case 5:
				if random.IntN(5) == 0 {
					require.NoError(t, store.DeleteExpectations(logr.Discard(), key))
					m = model{creations: set{}, deletions: set{}}
				}
			}
			if !m.known {
				require.Nil(t, store.GetCreateExpectations(key))
				continue
			}
			require.Equal(t, m.creations.list(), store.GetCreateExpectations(key))
			require.Equal(t, m.deletions.list(), store.GetDeleteExpectations(key))
			require.Equal(t, expect.Size{Keys: 1, Creations: len(m.creations), Deletions: len(m.deletions)}, store.Size())
		}
	}
}
