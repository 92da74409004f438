package provision

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
)

// TestTheClientsLimitIsLifted makes more requests than the given client may make in the test's time, with its
// identity and below its path.
func TestTheClientsLimitIsLifted(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/proxied/api/v1/nodes/n1" && r.Header.Get("Authorization") == "Bearer secret" {
			asked.Add(1)
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer server.Close()
	limited, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL + "/proxied", BearerToken: "secret", QPS: 0.001, Burst: 1})
	require.NoError(t, err)
	client := unthrottled(limited)
	began := time.Now()
	for range 100 {
		_, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		require.Error(t, err)
	}
	require.EqualValues(t, 100, asked.Load())
	require.Less(t, time.Since(began), 500*time.Second, "100 requests at 0.001 a second take more than a day")
	client.CoreV1().RESTClient().(*rest.RESTClient).Client.CloseIdleConnections()
}

func TestAFakeClientStaysAsItIs(t *testing.T) {
	client := fake.NewClientset()
	require.Same(t, client, unthrottled(client))
}
