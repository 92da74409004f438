package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

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
