package quantity_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/internal/quantity"
)

func TestParse(t *testing.T) {
	for _, text := range []string{"50Mi", "1E", "1Ei", "1e3", "2E-3", "1.5", "-1", "100m", "9223372036854775807", "1e+18"} {
		have, err := quantity.Parse(text)
		require.NoError(t, err, text)
		want := resource.MustParse(text)
		require.Zero(t, want.Cmp(have), text)
	}
	for _, text := range []string{"", "x", "1e-999999999", "1E+999999999", "1e999999999999", "0." + strings.Repeat("0", 1<<20) + "1", "1e"} {
		_, err := quantity.Parse(text)
		require.Error(t, err, "%.20s", text)
	}
}
