package berthtest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/filelock"
	"github.com/berth-dev/berth/up/isolate"
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
	files   *directory
	process *process
	config  *rest.Config
	client  kubernetes.Interface
	relays  relays
}

// Start starts a cluster and stops it at the end of the test. args are further flags of `berth up`.
func Start(t testing.TB, args ...string) *Cluster {
	t.Helper()
	berth := requireBerth(t)
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
	berth := requireBerth(t)
	shared.once.Do(func() {
		// The first test ends before the cluster does.
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		shared.running, shared.err = start(ctx, berth, nil, func(string) {})
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

// start starts a cluster and waits until it is ready, or ctx ends. It starts from the base of clusters, and makes that if it does not exist.
func start(ctx context.Context, berth string, args []string, onLine func(string)) (*running, error) {
	base, err := baseOf(root(), berth, args)
	if err != nil {
		return nil, err
	}
	if flags := base.flags(); flags != nil {
		r, err := startFrom(ctx, berth, append(flags, args...), onLine)
		if err == nil || ctx.Err() != nil {
			return r, err
		}
		onLine("starting from a saved cluster failed, starting from nothing: " + err.Error())
		if err := base.delete(); err != nil {
			return nil, err
		}
	}
	r, err := startFrom(ctx, berth, args, onLine)
	if err != nil {
		return nil, err
	}
	if err := base.save(ctx, r); err != nil {
		onLine("the next start is as slow as this one: " + err.Error())
	}
	return r, nil
}

// startFrom starts a cluster with the flags.
func startFrom(ctx context.Context, berth string, args []string, onLine func(string)) (_ *running, err error) {
	files, err := makeDirectory(root())
	if err != nil {
		return nil, err
	}
	r := &running{berth: berth, files: files}
	r.process, err = startProcess(berth, append([]string{
		"--data-dir", files.data(), "up", "--isolated", "--api-port", "0", "--unsafe-no-fsync", "--node-name", "node",
	}, args...), onLine)
	if err != nil {
		return nil, fmt.Errorf("%w (%v)", err, files.remove())
	}
	if err := r.process.waitReady(ctx); err != nil {
		return nil, fmt.Errorf("%w (%v)", err, r.stop())
	}
	r.config, err = clientcmd.BuildConfigFromFlags("", r.kubeconfig())
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
	if err := r.process.stop(stopTimeout); err != nil {
		return err // its files say why
	}
	return r.files.remove()
}

// end is stop for a cluster that may be killed after timeout: that is no error.
func (r *running) end(timeout time.Duration) error {
	r.relays.close()
	err := r.process.stop(timeout)
	if errors.Is(err, errKilled) {
		// Its first process still removes what the kernel does not.
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		lock, waitErr := filelock.Wait(ctx, clock.RealClock{}, filepath.Join(r.files.data(), isolate.LockName))
		if waitErr != nil {
			return fmt.Errorf("%w; wait for what is left of it: %w", err, waitErr)
		}
		defer lock.Close()
		err = nil
	}
	if err != nil {
		return err // its files say why
	}
	return r.files.remove()
}

func (r *running) kubeconfig() string { return filepath.Join(r.files.data(), "admin.kubeconfig") }

// run runs a command of berth on the cluster and returns what it prints.
func (r *running) run(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, r.berth, append([]string{"--data-dir", r.files.data()}, args...)...).CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("berth %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// Config returns the configuration of a client with all rights. The caller owns the copy.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.running.config) }

// Kubeconfig returns the path of a kubeconfig file with all rights, for programs. It is not to be changed.
func (c *Cluster) Kubeconfig() string { return c.running.kubeconfig() }

// Client returns a client with all rights.
func (c *Cluster) Client() kubernetes.Interface { return c.running.client }

// Namespace returns the test's namespace: that of its own on a shared cluster, else "default".
func (c *Cluster) Namespace() string { return c.namespace }

// Kubectl runs kubectl in the test's namespace and returns what it prints.
func (c *Cluster) Kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.running.run(c.t.Context(), append([]string{"kubectl", "--namespace", c.namespace}, args...)...)
	if err != nil {
		c.t.Fatalf("berthtest: %v", err)
	}
	return out
}

// Explain returns what `berth explain` says of an object of the test's namespace: "pod/NAME", "pvc/NAME", "svc/NAME" and so on.
func (c *Cluster) Explain(object string) string {
	c.t.Helper()
	out, err := c.running.run(c.t.Context(), "explain", object, "--namespace", c.namespace)
	if err != nil {
		c.t.Fatalf("berthtest: %v", err)
	}
	return out
}
