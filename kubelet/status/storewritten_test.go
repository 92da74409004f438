package status

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestTheWatchsCopyOfAVersionIsTheOneThatIsKept(t *testing.T) {
	w, err := NewWriter(WriterDeps{Client: fake.NewClientset()}, WriterConfig{})
	require.NoError(t, err)
	defer w.queue.ShutDown()
	version := func(v string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			UID: "u", ResourceVersion: v, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}},
		}}
	}
	watched := version("5")
	w.Observe(watched)
	w.storeWritten(version("5"))
	require.Same(t, watched, w.pods["u"].api, "the source has this object anyhow")

	w.storeWritten(version("6"))
	require.Equal(t, "6", w.pods["u"].api.ResourceVersion)
	require.Empty(t, w.pods["u"].api.ManagedFields)
	w.storeWritten(version("5"))
	require.Equal(t, "6", w.pods["u"].api.ResourceVersion, "an answer that came late")
	again := version("6")
	w.Observe(again)
	require.Same(t, again, w.pods["u"].api)
}
