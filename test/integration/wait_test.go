//go:build integration

package integration

import (
	"context"
	"strings"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// waitLog waits until a Pod's log has the text. A container runs a moment before it prints anything, and that is in its log
// another moment later.
func (c *cluster) waitLog(pod, want string) {
	c.t.Helper()
	var got string
	var err error
	if c.poll(func(context.Context) bool { got, err = c.run("kubectl", "logs", pod); return err == nil && got == want }) != nil {
		require.NoError(c.t, err, got)
		require.Equal(c.t, want, got, "the log of pod %s", pod)
	}
}

// waitEvents waits until there are events on an object, one with each of the texts in its reason or message. They come by
// themselves, and often after what they report.
func (c *cluster) waitEvents(namespace, object string, texts ...string) {
	c.t.Helper()
	api := c.client().CoreV1().Events(namespace)
	var all, missing string
	require.NoError(c.t, c.poll(func(ctx context.Context) bool {
		list, err := api.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
		if err != nil {
			all = err.Error()
			return false
		}
		all, missing = "", ""
		for i := range list.Items {
			all += list.Items[i].Reason + ": " + list.Items[i].Message + "\n"
		}
		for _, text := range texts {
			if !strings.Contains(all, text) {
				missing = text
			}
		}
		return missing == ""
	}), "no event on %s has %q; there are:\n%s", object, missing, all)
}
