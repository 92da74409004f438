package page_test

import (
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/page"
)

// TestAUserSeesWhatHisRightsAllow opens the page as a user who may read one namespace.
func TestAUserSeesWhatHisRightsAllow(t *testing.T) {
	var objects []runtime.Object
	for _, namespace := range []string{"shop", "secret"} {
		objects = append(objects, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "in-" + namespace, UID: types.UID(namespace)}, Status: corev1.PodStatus{Phase: corev1.PodPending},
		})
	}
	client := fake.NewClientset(objects...)
	client.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetNamespace() == "shop" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "", nil)
	})
	for namespace, want := range map[string]bool{"shop": true, "": false} {
		server, err := page.New(page.Deps{
			Connect: func() (kubernetes.Interface, error) { return client, nil }, Logger: slog.New(slog.DiscardHandler),
			Clock: testclock.NewFakeClock(start),
		}, page.Config{Address: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8099}, Cluster: "test", Namespace: namespace})
		require.NoError(t, err)
		cookie := enter(t, server)
		read := func(target string) string {
			response := request{target: target, cookie: cookie}.send(t, server)
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			return string(body)
		}
		text := read("/")
		require.NotContains(t, text, "in-secret")
		require.Equal(t, want, strings.Contains(text, "in-shop"), text)
		require.Contains(t, read("/cluster"), "Not seen: nodes")
	}
}
