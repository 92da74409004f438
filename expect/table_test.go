package expect

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhoComesLateDoesNotWriteToAnEntryLeftOut runs the one race of tables: a goroutine has found an entry, and before it
// has its lock the entry is left out of the next table. Nothing would ever read what the goroutine writes there.
func TestWhoComesLateDoesNotWriteToAnEntryLeftOut(t *testing.T) {
	const key, hash = "ns/idle", 1
	var sh shard
	sh.lockOrCreate(hash, key).mu.Unlock()
	last := sh.table.Load()
	for i := range uint64(largeTableSlots) {
		if sh.find(hash, key) == nil {
			break
		}
		last = sh.table.Load()
		sh.lockOrCreate(hash+i, fmt.Sprint("ns/", i)).mu.Unlock()
	}
	require.Nil(t, sh.find(hash, key), "the entry must be left out of a table that was full")
	var late shard // as he sees it
	late.table.Store(last)
	require.NotNil(t, late.find(hash, key))
	require.Nil(t, late.lockKnown(hash, key))
	again := sh.lockOrCreate(hash, key)
	require.NotSame(t, late.find(hash, key), again)
	require.Same(t, &emptyExpectations, again.snapshotPtr.Load())
}
