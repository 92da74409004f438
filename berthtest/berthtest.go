package berthtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/up/disposable"
)

const (
	// startTimeout bounds a start, which takes some two seconds: a busy machine is slow.
	startTimeout = 3 * time.Minute
	// stopTimeout bounds an orderly stop, in which Pods have their grace periods.
	stopTimeout = 2 * time.Minute
	// waitTimeout bounds what a test waits for, unless it ends earlier by its own deadline.
	waitTimeout = 3 * time.Minute
)

// Cluster is a running Kubernetes, as one test sees it. Its methods fail the test if they cannot do their work; call them from the
// test's goroutine. The values that they return may be used from any.
type Cluster struct {
	t         testing.TB
	running   *running
	namespace string
}

// running is a cluster that one or more tests use.
type running struct {
	berth   string
	cluster *disposable.Cluster
	config  *rest.Config
	client  kubernetes.Interface
	relays  relays
}

// Start starts a cluster and stops it at the end of the test. args are further flags of `berth up`.
func Start(t testing.TB, args ...string) *Cluster {
	t.Helper()
	berth := requireBerth(t, args)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	r, err := start(ctx, berth, args, func(line string) {
		if testing.Verbose() {
			t.Log("berth: " + line)
		}
	})
	if err != nil {
		t.Fatalf("berthtest: %v", err)
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("berthtest: %v", err)
		}
	})
	c := &Cluster{t: t, running: r, namespace: "default"}
	t.Cleanup(c.logFailure)
	return c
}

// shared is the cluster of Shared, started by the first test that calls it. It is the one state that the tests of a package
// share on purpose.
var shared struct {
	once sync.Once
	*running
	err error
}

// Shared returns the cluster that all tests of the package share, with a namespace of its own for this test, which is deleted
// at the end of the test. The cluster ends with the test process.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	berth := requireBerth(t, nil)
	shared.once.Do(func() {
		// The first test ends before the cluster does.
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		shared.running, shared.err = start(ctx, berth, nil, func(line string) {
			if testing.Verbose() {
				fmt.Println("berth: " + line) // it may come after the end of the test that started the cluster
			}
		})
	})
	if shared.err != nil {
		t.Fatalf("berthtest: %v", shared.err)
	}
	c := &Cluster{t: t, running: shared.running}
	c.namespace = c.makeNamespace()
	t.Cleanup(c.deleteNamespace)
	t.Cleanup(c.logFailure)
	return c
}

// start starts a cluster and waits until it is ready, or ctx ends. It takes one of the pool that runs this process, if there is one and the
// cluster needs no flags of its own.
func start(ctx context.Context, berth string, args []string, onLine func(string)) (_ *running, err error) {
	r := &running{berth: berth}
	if pool := os.Getenv(disposable.PoolEnv); pool != "" && len(args) == 0 {
		r.cluster, err = disposable.Take(ctx, pool)
	} else {
		r.cluster, err = disposable.Start(ctx, disposable.Config{Berth: berth, Root: disposable.Root(), Args: args, OnLine: onLine})
	}
	if err != nil {
		return nil, err
	}
	r.config, err = clientcmd.BuildConfigFromFlags("", r.cluster.Kubeconfig())
	if err == nil {
		r.config.QPS = -1 // the API server limits its clients itself
		r.client, err = kubernetes.NewForConfig(r.config)
	}
	if err != nil {
		return nil, fmt.Errorf("create a client of the cluster: %w (%v)", err, r.stop())
	}
	return r, nil
}

// stop ends the cluster and removes its files.
func (r *running) stop() error {
	r.relays.close()
	return r.cluster.Stop(stopTimeout)
}

// end is stop for a cluster that may be killed after timeout: that is no error.
func (r *running) end(timeout time.Duration) error {
	r.relays.close()
	return r.cluster.End(timeout)
}

// Config returns the configuration of a client with all rights. The caller owns the copy.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.running.config) }

// Kubeconfig returns the path of a kubeconfig file with all rights, for programs. It is not to be changed.
func (c *Cluster) Kubeconfig() string { return c.running.cluster.Kubeconfig() }

// Client returns a client with all rights.
func (c *Cluster) Client() kubernetes.Interface { return c.running.client }

// Namespace returns the test's namespace: that of its own on a shared cluster, else "default".
func (c *Cluster) Namespace() string { return c.namespace }

// Kubectl runs kubectl in the test's namespace and returns what it prints.
func (c *Cluster) Kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.running.cluster.Run(c.t.Context(), append([]string{"kubectl", "--namespace", c.namespace}, args...)...)
	if err != nil {
		c.t.Fatalf("berthtest: %v", err)
	}
	return out
}

// Explain returns what `berth explain` says of an object of the test's namespace: "pod/NAME", "pvc/NAME", "svc/NAME" and so on.
func (c *Cluster) Explain(object string) string {
	c.t.Helper()
	out, err := c.running.cluster.Run(c.t.Context(), "explain", object, "--namespace", c.namespace)
	if err != nil {
		c.t.Fatalf("berthtest: %v", err)
	}
	return out
}
