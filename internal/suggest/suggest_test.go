package suggest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/internal/suggest"
)

func TestNearest(t *testing.T) {
	known := []string{"pod", "pods", "pv", "deployment", "namespace"}
	for word, want := range map[string]string{
		"pds": "pods", "deploymnt": "deployment", "nmspace": "namespace", "pod": "pod",
		"service": "", "x": "", "xy": "", "": "",
	} {
		require.Equal(t, want, suggest.Closest(word, known), word)
	}
}
