//go:build integration

package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestWorkloads runs what users run: servers that keep data, a web server that is updated under load, an operator with an
// admission webhook, and a Helm chart.
func TestWorkloads(t *testing.T) {
	c := newClusterWithServices(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	importDebian(t, c)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"PostgreSQL with a replica", checkPostgres},
		{"Redis loses nothing that it confirmed", checkRedis},
		{"nginx is updated without an error", checkNginx},
		{"operator with an admission webhook", checkOperator},
		{"Helm", checkHelm},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, c.in(t)) })
	}
	c.stop()
	require.Empty(t, c.leftovers())
}

// in returns the cluster for a subtest.
func (c *cluster) in(t *testing.T) *cluster {
	sub := *c
	sub.t = t
	return &sub
}

// applyFile gives a manifest of testdata/workloads to kubectl.
func (c *cluster) applyFile(name string) {
	c.t.Helper()
	c.mustRun("kubectl", "apply", "-f", filepath.Join("testdata", "workloads", name))
}

// checkPostgres runs PostgreSQL with a streaming replica that finds its primary by name, and deletes the primary's Pod.
func checkPostgres(t *testing.T, c *cluster) {
	c.applyFile("postgres.yaml")
	const first, second = "statefulset.kubernetes.io/pod-name=pg-0", "statefulset.kubernetes.io/pod-name=pg-1"
	old := c.waitPod(first, "ready", isReady)
	c.waitPod(second, "ready", isReady)

	c.sql("pg-1", "pg-primary", "create table visits (n int)")
	c.sql("pg-1", "pg-primary", "insert into visits select generate_series(1, 1000)")
	c.waitSQL("pg-0", "pg-1.pg", "select count(*) from visits", "1000")
	require.Equal(t, "t", c.sql("pg-0", "pg-1.pg", "select pg_is_in_recovery()"))
	out, err := c.run("kubectl", "exec", "pg-0", "--", "sh", "-c", psql("pg-1.pg", "insert into visits values (0)"))
	require.Error(t, err)
	require.Contains(t, out, "read-only transaction")

	c.mustRun("kubectl", "delete", "pod", "pg-0")
	c.waitPod(first, "new and ready", func(pod *corev1.Pod) bool { return pod.UID != old.UID && isReady(pod) })
	c.waitSQL("pg-1", "pg-primary", "select count(*) from visits", "1000")
	c.sql("pg-1", "pg-primary", "insert into visits select generate_series(1, 500)")
	c.waitSQL("pg-0", "pg-1.pg", "select count(*) from visits", "1500") // the replica found the new primary
	c.mustRun("kubectl", "delete", "statefulset/pg", "service/pg", "service/pg-primary", "configmap/pg", "--cascade=foreground", "--wait")
	c.mustRun("kubectl", "delete", "pvc", "data-pg-0", "data-pg-1")
}

// psql is a command that runs a statement on a host.
func psql(host, statement string) string {
	return fmt.Sprintf(`/usr/lib/postgresql/*/bin/psql -h %s -U postgres -v ON_ERROR_STOP=1 -XAtqc "%s"`, host, statement)
}

// sql runs a statement from the Pod on the host and returns its output.
func (c *cluster) sql(pod, host, statement string) string {
	c.t.Helper()
	return strings.TrimSpace(c.mustRun("kubectl", "exec", pod, "--", "sh", "-c", psql(host, statement)))
}

// waitSQL runs a query until it has the wanted result.
func (c *cluster) waitSQL(pod, host, query, want string) {
	c.t.Helper()
	var got string
	require.NoError(c.t, c.poll(func(context.Context) bool {
		out, err := c.run("kubectl", "exec", pod, "--", "sh", "-c", psql(host, query))
		got = strings.TrimSpace(out)
		return err == nil && got == want
	}), "%s on %s: %s", query, host, got)
}

// checkRedis deletes the Pod of redis while a Job writes to it.
func checkRedis(t *testing.T, c *cluster) {
	c.applyFile("redis.yaml")
	old := c.waitPod("app=redis", "ready", isReady)
	keys := func() int {
		out, err := c.run("kubectl", "exec", "redis-0", "--", "redis-cli", "dbsize")
		if err != nil {
			return -1 // it is being replaced
		}
		count, err := strconv.Atoi(strings.TrimSpace(out))
		require.NoError(t, err, out)
		return count
	}
	require.NoError(t, c.poll(func(context.Context) bool { return keys() > 20 }))
	c.mustRun("kubectl", "delete", "pod", "redis-0")
	c.waitPod("app=redis", "new and ready", func(pod *corev1.Pod) bool { return pod.UID != old.UID && isReady(pod) })
	c.waitPod("app=redis-writer", "finished", func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	require.Equal(t, 300, keys())
	c.mustRun("kubectl", "delete", "-f", filepath.Join("testdata", "workloads", "redis.yaml"))
	c.mustRun("kubectl", "delete", "pvc", "data-redis-0")
}

// checkNginx updates a Deployment while requests go through its Service's external address without a pause. None may fail.
func checkNginx(t *testing.T, c *cluster) {
	c.applyFile("nginx.yaml")
	c.mustRun("kubectl", "rollout", "status", "deployment/nginx", "--timeout", waitTimeout.String())
	c.mustRun("kubectl", "wait", "service/nginx", "--for", "jsonpath={.status.loadBalancer.ingress[0].ip}", "--timeout", waitTimeout.String())
	url := "http://" + c.mustRun("kubectl", "get", "service/nginx", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: waitTimeout}
	getBy(t, client, url)
	pods := func() []string {
		return strings.Fields(c.mustRun("kubectl", "get", "pods", "-l", "app=nginx", "-o", "jsonpath={.items[*].metadata.name}"))
	}

	old := pods()
	ctx, stop := context.WithCancel(t.Context())
	served, failed := map[string]int{}, make(chan error, 1)
	go func() { failed <- requestUntil(ctx, client, url, served) }()
	c.mustRun("kubectl", "rollout", "restart", "deployment/nginx")
	c.mustRun("kubectl", "rollout", "status", "deployment/nginx", "--timeout", waitTimeout.String())
	for _, name := range old {
		c.mustRun("kubectl", "wait", "--for=delete", "pod/"+name, "--timeout", waitTimeout.String())
	}
	stop()
	require.NoError(t, <-failed)
	byOld := 0
	for _, name := range old {
		byOld += served[name]
		delete(served, name)
	}
	require.NotZero(t, byOld, "requests before the update")
	require.NotEmpty(t, served, "requests after the update")
	require.Subset(t, pods(), slices.Collect(maps.Keys(served)))
	c.mustRun("kubectl", "delete", "-f", filepath.Join("testdata", "workloads", "nginx.yaml"))
}

// requestUntil sends requests until ctx is done or one fails, and counts in served those that each Pod answered.
func requestUntil(ctx context.Context, client *http.Client, url string, served map[string]int) error {
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for ctx.Err() == nil {
		pod, err := requestName(client, url) // not with ctx: the last one is to succeed too
		if err != nil {
			return fmt.Errorf("after requests to %v: %w", served, err)
		}
		served[pod]++
		<-pause.C
	}
	return nil
}

// requestName returns the name of the Pod that answers: its host name, which is the body.
func requestName(client *http.Client, url string) (string, error) {
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = errors.New(response.Status)
	}
	return string(body), err
}

// checkOperator runs an operator of ours: its custom resource goes through its webhook, which is reached by a Service, and
// what it owns is collected with its owner.
func checkOperator(t *testing.T, c *cluster) {
	importProgram(t, c, "example.test/operator:v1", thirdPartyBinary(t, "operator"), "/operator")
	c.applyFile("operator.yaml")
	c.mustRun("kubectl", "rollout", "status", "deployment/operator", "--timeout", waitTimeout.String())
	greeting := func(name, who string) string {
		return fmt.Sprintf(`{"apiVersion": "example.com/v1", "kind": "Greeting", "metadata": {"name": "%s"}, "spec": {"who": "%s"}}`, name, who)
	}
	c.apply(greeting("world", "world"))
	c.mustRun("kubectl", "wait", "greeting/world", "--for", "jsonpath={.status.configMap}=world", "--timeout", waitTimeout.String())
	require.Equal(t, "Hello, world!", c.mustRun("kubectl", "get", "configmap", "world", "-o", "jsonpath={.data.text}"), "the webhook completes it")

	path := filepath.Join(t.TempDir(), "refused.json")
	require.NoError(t, os.WriteFile(path, []byte(greeting("refused", "Voldemort")), 0o600))
	out, err := c.run("kubectl", "apply", "-f", path)
	require.Error(t, err)
	require.Contains(t, out, "spec.who must not be Voldemort")
	require.NoError(t, c.poll(func(context.Context) bool {
		out, err := c.run("kubectl", "explain", "greeting.spec.who")
		return err == nil && strings.Contains(out, "The one that is greeted.")
	}), "kubectl explain knows the custom resource")

	c.mustRun("kubectl", "delete", "greeting/world")
	c.mustRun("kubectl", "wait", "--for=delete", "configmap/world", "--timeout", waitTimeout.String())
	c.mustRun("kubectl", "delete", "-f", filepath.Join("testdata", "workloads", "operator.yaml"))
}
