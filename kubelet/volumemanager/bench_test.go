package volumemanager_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// BenchmarkMountAndUnmount is what volumes add to a Pod's start and end, without the API server's answers.
func BenchmarkMountAndUnmount(b *testing.B) {
	f := newFixture(b)
	f.create(configMap("conf", "1"))
	require.NoError(b, f.Mount(b.Context(), pod("keeps-the-watch", configMapVolume("conf", "conf"))))
	var mounting time.Duration
	for i := 0; b.Loop(); i++ {
		uid := types.UID(fmt.Sprint(i))
		p := pod(uid, emptyDir("disk"), configMapVolume("conf", "conf"), tokenVolume("tok"))
		began := time.Now()
		if err := f.Mount(b.Context(), p); err != nil {
			b.Fatal(err)
		}
		mounting += time.Since(began)
		if err := f.Unmount(b.Context(), uid); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(mounting.Microseconds())/float64(b.N), "µs-mount/op")
}
