package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	componentversion "k8s.io/component-base/version"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/codepages"
	"github.com/berth-dev/berth/controlplane/apiserver"
	"github.com/berth-dev/berth/controlplane/config"
	"github.com/berth-dev/berth/controlplane/contain"
	"github.com/berth-dev/berth/controlplane/controllermanager"
	"github.com/berth-dev/berth/controlplane/datadir"
	"github.com/berth-dev/berth/controlplane/encryption"
	"github.com/berth-dev/berth/controlplane/etcd"
	"github.com/berth-dev/berth/controlplane/gctuner"
	"github.com/berth-dev/berth/controlplane/healthsocket"
	"github.com/berth-dev/berth/controlplane/identities"
	"github.com/berth-dev/berth/controlplane/idletuner"
	"github.com/berth-dev/berth/controlplane/listedrbac"
	"github.com/berth-dev/berth/controlplane/listen"
	"github.com/berth-dev/berth/controlplane/rbac"
	"github.com/berth-dev/berth/controlplane/relocation"
	"github.com/berth-dev/berth/controlplane/scheduler"
	"github.com/berth-dev/berth/controlplane/statuspipe"
	"github.com/berth-dev/berth/controlplane/supervisor"
	"github.com/berth-dev/berth/controlplane/wallclock"
)

const (
	// dataFormat counts changes of the data directory's layout.
	dataFormat = 2
	// encryptedFormat is the first format whose Secrets are encrypted.
	encryptedFormat = 2
	// stopTimeout is how long a stop may take before the process ends anyway;
	// etcd loses nothing by that.
	stopTimeout = 10 * time.Second
	// lateTimers is how late a timer may be while the cluster is not in use, which is so when unusedTime has passed since the
	// last request.
	lateTimers = 500 * time.Millisecond
	unusedTime = time.Second
)

// run locks the data directory, writes the files, opens the listeners and runs the components until ctx ends.
func run(ctx context.Context, c *config.Config, events *statuspipe.Writer) (err error) {
	lock, err := datadir.Acquire(c.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Release()) }()
	versions := datadir.Versions{
		Format: dataFormat, Kubernetes: componentversion.DefaultKubeBinaryVersion, Etcd: version.Version,
	}
	former, err := datadir.CheckVersion(c.DataDir, versions)
	if err != nil {
		return err
	}
	// Before the version is recorded: a crash in between is not a lost key.
	if err := encryption.Prepare(c, former.Format >= encryptedFormat); err != nil {
		return err
	}
	if err := datadir.RecordVersion(c.DataDir, versions); err != nil {
		return err
	}
	// Other users may pass through it; private files have directories of their own below it.
	if err := os.MkdirAll(c.RunDir, 0o711); err != nil {
		return fmt.Errorf("create --run-dir: %w", err)
	}
	transport.CertCallbackRefreshDuration = c.CertificateReload()
	own, err := identities.Ensure(identities.Deps{Clock: clock.RealClock{}, Wait: wallclock.Wait}, c)
	if err != nil {
		return err
	}
	admin, err := adminClient(c)
	if err != nil {
		return err
	}
	listener, err := listen.Open(ctx, c.BindAddresses, c.APIPort)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	if c.ListenerFD != 0 {
		if err := listener.Inherit(os.NewFile(uintptr(c.ListenerFD), "--listener-fd")); err != nil {
			return err
		}
	}
	health, err := healthsocket.Serve(ctx, c.HealthSocket(), livez(admin))
	if err != nil {
		return err
	}
	defer health.Close()
	started, idle := make(chan struct{}), idletuner.New(lateTimers, unusedTime)
	defer goWhenStarted(ctx, started, tuneMemory)()
	defer goWhenStarted(ctx, started, own.Run)()
	defer goWhenStarted(ctx, started, func(ctx context.Context) {
		if err := idle.Run(ctx); err != nil {
			klog.V(2).InfoS("Failed to save CPU time while the cluster is not in use; an idle control plane needs more", "error", err)
		}
	})()
	// The default handler warns about old versions of types that upstream's own controllers use.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	reported := make(chan struct{})
	server := apiserver.Deps{Listener: listener, Admin: admin, Used: idle.Use, NodeReported: sync.OnceFunc(func() { close(reported) })}
	components, err := supervisor.New(supervisor.Deps{Reporter: events}, supervisor.Config{
		Phases: phases(c, server, reported, func(err error) { os.Exit(fail(events, err)) }), StopTimeout: stopTimeout,
	})
	if err != nil {
		return err
	}
	return components.Run(ctx, func() {
		_ = events.Report(statuspipe.ControlPlane, statuspipe.Ready, nil)
		close(started)
	})
}

// livez returns the check of the health socket: whether the API server responds. Of what it says only that counts which a new process
// changes: the certificate by which it reaches itself has ended, after three years. It is also unhealthy while etcd's disk is full.
func livez(admin kubernetes.Interface) func(ctx context.Context) error {
	return func(ctx context.Context) error {
		err := admin.Discovery().RESTClient().Get().AbsPath("/livez/" + apiserver.LoopbackCheck).Do(ctx).Error()
		if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code != http.StatusInternalServerError {
			return nil
		}
		return err
	}
}

// goWhenStarted calls run in a goroutine when started is closed. The function that it returns ends that and waits for it.
func goWhenStarted(ctx context.Context, started <-chan struct{}, run func(ctx context.Context)) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go contain.Guard("controlplane.background", func() {
		defer close(ended)
		select {
		case <-started:
			run(ctx)
		case <-ctx.Done():
		}
	})()
	return func() {
		cancel()
		<-ended
	}
}

// tuneMemory keeps the process as small as what it does allows, until ctx ends.
func tuneMemory(ctx context.Context) {
	release := func() {
		if err := codepages.Release(); err != nil {
			klog.V(2).InfoS("Failed to return memory of code to the system", "error", err)
		}
	}
	if err := gctuner.Run(ctx, release); err != nil {
		klog.ErrorS(err, "Failed to tune the garbage collector; it runs with its default settings")
	}
}

// phases returns the components in the order of their start. reported is closed when a Node has been reported to the API server. crash ends
// the process at once, so that the next one checks the store's database.
func phases(c *config.Config, deps apiserver.Deps, reported <-chan struct{}, crash func(error)) [][]supervisor.Component {
	store := etcd.New(etcd.Config{
		DataDir: c.EtcdDataDir(), Socket: c.EtcdSocket(), LogLevel: c.LogLevel, UnsafeNoFsync: c.UnsafeNoFsync,
		Checker: c.DatabaseChecker, Crashed: hasCrashed(c), // damaged pages cause crashes
	})
	check := newStoreCheck(clock.RealClock{}, store.CheckValues, crash)
	deps.Unreadable = check.suspect
	server := apiserver.New(deps, c)
	ensureRBAC := func(ctx context.Context, _ func()) error {
		listed, err := listedrbac.New(ctx, deps.Admin)
		if err != nil {
			return err
		}
		return rbac.Ensure(ctx, listed)
	}
	first := headStart{reported: reported, limit: nodeFirst, lock: c.StartLock}
	switch {
	case c.APIOnly || hasCrashed(c):
		first.limit = 0
	case c.StartLock != "":
		first.limit = togetherFirst
	}
	last := []supervisor.Component{{Name: statuspipe.ControllerManager, Run: first.before(controllermanager.New(c).Run)}}
	if !c.APIOnly {
		last = append(last, supervisor.Component{Name: statuspipe.RBAC, Run: ensureRBAC, OneShot: true},
			supervisor.Component{Name: statuspipe.Scheduler, Run: first.before(scheduler.New(c).Run)})
	}
	if encryption.IsRewriteDue(c) {
		last = append(last, supervisor.Component{Name: statuspipe.Encryption, OneShot: true, Run: func(ctx context.Context, ready func()) error {
			ready() // nothing waits for it
			if err := encryption.Rewrite(ctx, deps.Admin, c); err != nil && ctx.Err() == nil {
				klog.ErrorS(err, "Failed to encrypt Secrets that an older version has written; the next start tries again")
			}
			return nil
		}})
	}
	return [][]supervisor.Component{
		{{Name: statuspipe.Etcd, Run: func(ctx context.Context, ready func()) error { return runStore(ctx, c, store, ready) }}},
		{{Name: statuspipe.APIServer, Run: check.beside(server.Run)}},
		last,
	}
}

// hasCrashed reports whether an earlier process of this run of the cluster has ended without removing its socket: the Node has been reported
// long ago then.
func hasCrashed(c *config.Config) bool {
	_, err := os.Lstat(c.EtcdSocket())
	return err == nil
}

// runStore runs the store. It is ready once what it says about the data directory's path is right.
func runStore(ctx context.Context, c *config.Config, store *etcd.Server, ready func()) error {
	former, err := relocation.Former(c.DataDir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err = store.Run(ctx, func() {
		if err := relocate(ctx, c, former); err != nil {
			cancel(err)
			return
		}
		ready()
	})
	if cause := context.Cause(ctx); err == nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// relocate has the store follow the data directory, whose former path is empty if it has not moved, and records the path.
func relocate(ctx context.Context, c *config.Config, former string) error {
	if former != "" {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint(c.EtcdSocket())}, Context: ctx})
		if err != nil {
			return fmt.Errorf("follow the data directory from %s to %s: %w", former, c.DataDir, err)
		}
		err = relocation.Apply(ctx, client, former, c.DataDir)
		if err := errors.Join(err, client.Close()); err != nil {
			return fmt.Errorf("follow the data directory from %s to %s: %w", former, c.DataDir, err)
		}
	}
	return relocation.Record(c.DataDir)
}

// adminClient returns a client of the API server with all rights.
func adminClient(c *config.Config) (kubernetes.Interface, error) {
	path := c.Kubeconfig(identities.ControlPlane)
	restConfig, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig %q: %w", path, err)
	}
	restConfig.QPS = -1
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("create admin client: %w", err)
	}
	return client, nil
}

// setUpLogging sends everything the components log to standard error as
// structured text. Their warnings have level info, as klog passes them on.
func setUpLogging(level string, events *statuspipe.Writer) {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: levels[level]})))
	if level == "debug" {
		var verbosity klog.Level
		_ = verbosity.Set("4") // a constant that parses
	}
	// A component that fails ends the process from inside klog: without this the
	// parent process would get no report.
	klog.OsExit = func(code int) {
		_ = events.Report(statuspipe.ControlPlane, statuspipe.Failed,
			fmt.Errorf("a component ended the process with code %d: see standard error", code))
		os.Exit(code)
	}
}
