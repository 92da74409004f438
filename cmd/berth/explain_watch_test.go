package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/internal/wakeup"
)

// onWrite calls a function after each write.
type onWrite struct {
	bytes.Buffer
	done func()
}

func (w *onWrite) Write(data []byte) (int, error) {
	defer w.done()
	return w.Buffer.Write(data)
}

// TestTheEndOfAWatchedObjectIsForPeople deletes a Pod that is watched. A program sees that by the end of the output.
func TestTheEndOfAWatchedObjectIsForPeople(t *testing.T) {
	for output, says := range map[string]bool{"": true, "json": false, "yaml": false} {
		t.Run(output, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Status: corev1.PodStatus{Phase: corev1.PodPending}}
			client := fake.NewClientset(pod)
			changed := wakeup.NewSignal()
			changed.Notify()
			out, deleted := &onWrite{}, false
			out.done = func() {
				if !deleted {
					deleted = true
					require.NoError(t, client.CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{}))
					changed.Notify()
				}
			}
			cmd := &cobra.Command{}
			cmd.SetOut(out)
			f := &explainFlags{output: output, namespace: "default"}
			last, err := f.watchLoop(t.Context(), cmd, explain.Source{Client: client}, target{explain.KindPod, "web"}, changed)
			require.NoError(t, err)
			require.Nil(t, last)
			require.Equal(t, says, strings.HasSuffix(out.String(), "default/web: gone\n"), out.String())
			require.Equal(t, output == "json", json.Valid(out.Bytes()), out.String())
		})
	}
}

// TestAWatchedSnapshotIsFollowed watches snapshots of an API server that has nothing else: each of them is a change.
func TestAWatchedSnapshotIsFollowed(t *testing.T) {
	for kind, path := range map[string]string{
		explain.KindSnapshot:      "/apis/snapshot.storage.k8s.io/v1/namespaces/ns/volumesnapshots",
		explain.KindGroupSnapshot: "/apis/groupsnapshot.storage.k8s.io/v1beta2/namespaces/ns/volumegroupsnapshots",
	} {
		t.Run(kind, func(t *testing.T) {
			list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{{Object: map[string]any{
				"kind": kind, "apiVersion": strings.Join(strings.Split(path, "/")[2:4], "/"), "metadata": map[string]any{"name": "s", "namespace": "ns"},
			}}}}
			list.SetKind(kind + "List")
			list.SetAPIVersion(list.Items[0].GetAPIVersion())
			list.SetResourceVersion("1")
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.URL.Path != path:
					http.NotFound(w, r)
				case r.URL.Query().Has("sendInitialEvents"):
					http.Error(w, "streams of lists are not supported", http.StatusUnprocessableEntity)
				case r.URL.Query().Get("watch") != "":
					<-r.Context().Done()
				default:
					w.Header().Set("Content-Type", "application/json")
					assert.NoError(t, json.NewEncoder(w).Encode(list))
				}
			}))
			defer server.Close()
			watched, err := newWatched(&rest.Config{Host: server.URL}, "ns", kind)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			changed, ended := wakeup.NewSignal(), make(chan error, 1)
			go func() { ended <- watched.run(ctx, changed.Notify) }()
			select {
			case <-changed.C():
			case <-time.After(time.Minute):
				assert.Fail(t, "nothing is watched")
			}
			cancel()
			require.NoError(t, <-ended)
		})
	}
}
