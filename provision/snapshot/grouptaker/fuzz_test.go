package grouptaker

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/provision/snapshot/taker"
)

// FuzzGroup checks groups of snapshots that a driver reports, ID=VOLUME,…: one that is accepted has one snapshot of each volume, and each its own.
func FuzzGroup(f *testing.F) {
	f.Add("g", "a=v,b=w", "w,v")
	f.Add("g", "a=v,a=w", "v,w")
	f.Add("", "=v", "v")
	f.Add("g", "a=v,b=v", "v")
	f.Fuzz(func(t *testing.T, id, snapshots, volumes string) {
		group := Group{ID: id}
		for one := range strings.SplitSeq(snapshots, ",") {
			id, volume, _ := strings.Cut(one, "=")
			group.Snapshots = append(group.Snapshots, Member{Snapshot: taker.Snapshot{ID: id}, Volume: volume})
		}
		wanted := strings.Split(volumes, ",")
		if err := checkGroup(group, wanted); err != nil {
			require.ErrorContains(t, err, "the driver reports success, but")
			return
		}
		require.NotEmpty(t, id)
		ids, sources := map[string]bool{}, []string{}
		for _, member := range group.Snapshots {
			require.NotEmpty(t, member.ID)
			ids[member.ID] = true
			sources = append(sources, member.Volume)
		}
		require.Len(t, ids, len(group.Snapshots))
		require.ElementsMatch(t, wanted, sources)
	})
}
