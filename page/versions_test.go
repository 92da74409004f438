package page

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// TestVersionsAreBounded changes more objects than have versions of their own: each change of one still raises its version.
func TestVersionsAreBounded(t *testing.T) {
	var v versions
	emptied := 0
	for last := uint64(0); last < 4*maxVersions; {
		for _, uid := range []types.UID{"a", types.UID(strconv.FormatUint(last, 10))} {
			before := v.get(uid)
			if v.raise(uid) {
				emptied++
			}
			require.Greater(t, v.get(uid), before)
			require.GreaterOrEqual(t, v.get("a"), last)
			require.LessOrEqual(t, len(v.of), maxVersions)
		}
		last = v.get("a")
	}
	require.Positive(t, emptied)
}
