package explain_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/explain"
)

// TestSnapshots explains VolumeSnapshots of an API server that has one of them and a claim that is to be created from it.
func TestSnapshots(t *testing.T) {
	const meta = `"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": "s", "namespace": "ns"`
	for name, tc := range map[string]struct{ snapshot, reason, verdict string }{
		"no response": {meta + `}`, "SnapshotControllerSilent", "no snapshot controller has responded"},
		"failed": {meta + `}, "status": {"readyToUse": false, "error": {"message": "the disk is full"}}`,
			"SnapshotFailed", "it cannot be taken: the disk is full"},
		"pending": {meta + `}, "status": {"readyToUse": false, "boundVolumeSnapshotContentName": "c"}`, "SnapshotPending", "its driver is taking it"},
		"ready": {meta + `}, "status": {"readyToUse": true, "boundVolumeSnapshotContentName": "c", "restoreSize": "1Gi"}`,
			"ReadyToUse", "ready: volumes can be created from it, of at least 1Gi"},
		"deleted": {meta + `, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/kept"]}`,
			"InUse", "still the source of claim restored"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body := `{"kind": "List", "apiVersion": "v1", "items": []}`
				switch r.URL.Path {
				case "/apis/snapshot.storage.k8s.io/v1/namespaces/ns/volumesnapshots/s":
					body = "{" + tc.snapshot + "}"
				case "/api/v1/namespaces/ns/persistentvolumeclaims":
					body = `{"kind": "PersistentVolumeClaimList", "apiVersion": "v1", "items": [{"metadata": {"name": "restored", "namespace": "ns"},
						"spec": {"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}}, "status": {"phase": "Pending"}}]}`
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(body)) // the client fails if it gets less
			}))
			defer server.Close()
			client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
			require.NoError(t, err)
			found, err := explain.Explain(t.Context(), explain.Source{Client: client}, explain.KindSnapshot, "ns", "s")
			require.NoError(t, err)
			require.Equal(t, tc.reason, found.Reason)
			require.Contains(t, found.Verdict, tc.verdict)
		})
	}
}
