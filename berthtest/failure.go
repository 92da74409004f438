package berthtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/up/disposable"
)

const (
	// failureTimeout bounds what is collected about a failed test.
	failureTimeout = time.Minute
	// maxEvents and maxLogLines bound what is logged of it.
	maxEvents, maxLogLines = 50, 20
)

// logFailure logs what a failed test leaves: what is stuck and why, events, and the ends of containers' logs. It writes a page with the stages of
// all that is stuck.
func (c *Cluster) logFailure() {
	if !c.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.t.Context()), failureTimeout)
	defer cancel()
	stuck, err := c.running.cluster.Run(ctx, "explain", "--all")
	if err != nil {
		stuck = err.Error()
	}
	c.t.Logf("berth explain --all:\n%s", stuck)
	if page, err := c.writePage(ctx); err != nil {
		c.t.Logf("berthtest: write the page of what is stuck: %v", err)
	} else {
		c.t.Logf("what is stuck, stage by stage: %s", page)
	}
	c.t.Logf("events in %s:\n%s", c.namespace, c.events(ctx))
	pods, err := c.running.client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Logf("berthtest: list the Pods of the failed test: %v", err)
		return
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		out, err := c.running.cluster.Run(ctx, "kubectl", "--namespace", c.namespace, "logs", pod.Name, "--all-containers", "--prefix", fmt.Sprintf("--tail=%d", maxLogLines))
		switch {
		case err == nil && out == "":
			c.t.Logf("Pod %s, which is %s, has no logs", pod.Name, pod.Status.Phase)
		case err == nil:
			c.t.Logf("logs of Pod %s, which is %s:\n%s", pod.Name, pod.Status.Phase, out)
		}
	}
}

// writePage writes what the cluster's objects wait for as a page that stands alone, and returns its path: among the test's artifacts with
// go test -artifacts, else in a directory where the same test's next failure replaces it.
func (c *Cluster) writePage(ctx context.Context) (string, error) {
	dir := disposable.Root() + "-failed"
	if keep := flag.Lookup("test.artifacts"); keep != nil && keep.Value.String() == "true" {
		dir = c.t.ArtifactDir()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fileName.ReplaceAllString(c.t.Name(), "_")+".html")
	_, err := c.running.cluster.Run(ctx, "explain", "--all", "--html", path)
	return path, err
}

// fileName matches what a test's name may have and a file's name should not.
var fileName = regexp.MustCompile(`[^-.A-Za-z0-9]+`)

// events lists the latest events of the test's namespace, the oldest first.
func (c *Cluster) events(ctx context.Context) string {
	list, err := c.running.client.CoreV1().Events(c.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	return eventLines(list.Items)
}

// eventLines lists the latest events, which the API server lists by their names.
func eventLines(items []corev1.Event) string {
	slices.SortStableFunc(items, func(a, b corev1.Event) int { return eventTime(&a).Compare(eventTime(&b)) })
	items = items[max(0, len(items)-maxEvents):]
	var text strings.Builder
	for i := range items {
		e := &items[i]
		fmt.Fprintf(&text, "%s %s %s/%s %s: %s\n", eventTime(e).Format(time.TimeOnly), e.Type, strings.ToLower(e.InvolvedObject.Kind), e.InvolvedObject.Name, e.Reason, e.Message)
	}
	return text.String()
}

// eventTime is when the event happened last.
func eventTime(e *corev1.Event) time.Time {
	for _, t := range []time.Time{e.LastTimestamp.Time, e.EventTime.Time} {
		if !t.IsZero() {
			return t
		}
	}
	return e.CreationTimestamp.Time
}
