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
			client := serve(t, map[string]string{"/apis/snapshot.storage.k8s.io/v1/namespaces/ns/volumesnapshots/s": "{" + tc.snapshot + "}"})
			found, err := explain.Explain(t.Context(), explain.Source{Client: client}, explain.KindSnapshot, "ns", "s")
			require.NoError(t, err)
			require.Equal(t, tc.reason, found.Reason)
			require.Contains(t, found.Verdict, tc.verdict)
		})
	}
}

// TestGroupSnapshots explains VolumeGroupSnapshots of an API server that has one of them, a member of it, and a claim that is to be
// created from the member.
func TestGroupSnapshots(t *testing.T) {
	const meta = `"metadata": {"name": "g", "namespace": "ns", "uid": "group"`
	for name, tc := range map[string]struct{ group, reason, verdict string }{
		"no response": {meta + `}`, "SnapshotControllerSilent", "no snapshot controller has responded"},
		"failed": {meta + `}, "status": {"readyToUse": false, "error": {"message": "claim \"data\" is not bound to a volume yet"}}`,
			"SnapshotFailed", `it cannot be taken: claim "data" is not bound`},
		"ready": {meta + `}, "status": {"readyToUse": true, "boundVolumeGroupSnapshotContentName": "c"}`,
			"ReadyToUse", "ready: volumes can be created from it, by its 1 VolumeSnapshots"},
		"deleted": {meta + `, "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/kept"]}`,
			"InUse", "still the source of claim restored"},
	} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, map[string]string{
				"/apis/groupsnapshot.storage.k8s.io/v1beta2/namespaces/ns/volumegroupsnapshots/g": "{" + tc.group + "}",
				"/apis/snapshot.storage.k8s.io/v1/namespaces/ns/volumesnapshots": `{"items": [{"metadata": {"name": "other"}},
					{"metadata": {"name": "s", "ownerReferences": [{"apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshot", "name": "g", "uid": "group"}]}}]}`,
			})
			found, err := explain.Explain(t.Context(), explain.Source{Client: client}, explain.KindGroupSnapshot, "ns", "g")
			require.NoError(t, err)
			require.Equal(t, tc.reason, found.Reason)
			require.Contains(t, found.Verdict, tc.verdict)
		})
	}
}

// serve serves API objects by their paths, and a claim that is to be created from VolumeSnapshot ns/s.
func serve(t *testing.T, objects map[string]string) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := objects[r.URL.Path]
		switch {
		case ok:
		case r.URL.Path == "/api/v1/namespaces/ns/persistentvolumeclaims":
			body = `{"kind": "PersistentVolumeClaimList", "apiVersion": "v1", "items": [{"metadata": {"name": "restored", "namespace": "ns"},
				"spec": {"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}}, "status": {"phase": "Pending"}}]}`
		default:
			body = `{"kind": "List", "apiVersion": "v1", "items": []}`
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(body)) // the client fails if it gets less
	}))
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	require.NoError(t, err)
	return client
}
