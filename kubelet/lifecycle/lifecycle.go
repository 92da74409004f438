package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/internal/wakeup"
	"github.com/berth-dev/berth/kubelet/prober/probe"
)

// ReasonHTTPFallback is the reason of the event when an HTTPS hook got a plain HTTP response and was sent again over
// HTTP.
const ReasonHTTPFallback = "LifecycleHTTPFallback"

// maxResponseBody is how much of a hook's HTTP response is read before the connection is closed, in bytes.
const maxResponseBody = 10 << 10

// Deps are what a Runner needs from others. Exec is required; the rest may be nil.
type Deps struct {
	Exec     probe.ExecRunner     // runs exec hooks; the CRI's ExecSync
	HTTP     http.RoundTripper    // sends httpGet hooks; nil for probe.NewHTTPTransport
	Recorder record.EventRecorder // gets LifecycleHTTPFallback
	Clock    clock.Clock          // for the sleep hook
	Metrics  Metrics
	Logger   *slog.Logger
}

// Metrics counts what is unusual about hooks.
type Metrics interface {
	// HTTPFallback counts an HTTPS hook that succeeded over HTTP.
	HTTPFallback()
	// SleepCutShort counts a sleep hook that ended before its time, because the grace period or the container has ended.
	SleepCutShort()
}

type noMetrics struct{}

func (noMetrics) HTTPFallback()  {}
func (noMetrics) SleepCutShort() {}

// Runner runs hooks. It is safe for concurrent use.
type Runner struct {
	exec     probe.ExecRunner
	http     *http.Client
	recorder record.EventRecorder
	clock    clock.Clock
	metrics  Metrics
	logger   *slog.Logger
}

// Target is the container whose hook is to run.
type Target struct {
	Pod         *corev1.Pod
	Container   *corev1.Container
	ContainerID string // as the runtime knows it
	PodIP       string // the host of an httpGet hook that names none
}

// Error is the failure of a hook. Its text is meant for the event FailedPostStartHook or FailedPreStopHook of the caller
// and never contains the output of the hook's command, which may be confidential.
type Error struct {
	Step string // what was run: exec, httpGet, sleep
	Err  error
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("run %s hook: %v", e.Step, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// NewRunner returns a Runner.
func NewRunner(deps Deps) (*Runner, error) {
	if deps.Exec == nil {
		return nil, errors.New("lifecycle: Deps.Exec is required")
	}
	if deps.HTTP == nil {
		deps.HTTP = probe.NewHTTPTransport()
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Metrics == nil {
		deps.Metrics = noMetrics{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	return &Runner{
		exec:     deps.Exec,
		http:     &http.Client{Transport: deps.HTTP, CheckRedirect: probe.CheckRedirect},
		recorder: deps.Recorder,
		clock:    deps.Clock,
		metrics:  deps.Metrics,
		logger:   deps.Logger,
	}, nil
}

// Run runs the hook until it ends or ctx ends, which bounds it by the grace period: hooks have no timeout of their own.
// A failure is an *Error. A nil hook succeeds.
func (r *Runner) Run(ctx context.Context, target Target, hook *corev1.LifecycleHandler) error {
	switch {
	case hook == nil:
		return nil
	case hook.Exec != nil:
		return r.runExec(ctx, target, hook.Exec)
	case hook.HTTPGet != nil:
		if err := r.runHTTP(ctx, target, hook.HTTPGet); err != nil {
			return &Error{Step: "httpGet", Err: err}
		}
		return nil
	case hook.Sleep != nil:
		if err := r.sleep(ctx, time.Duration(hook.Sleep.Seconds)*time.Second); err != nil {
			return &Error{Step: "sleep", Err: err}
		}
		return nil
	case hook.TCPSocket != nil:
		// The API keeps the field for old objects only and documents that it fails.
		return &Error{Step: "tcpSocket", Err: errors.New("tcpSocket is not supported as a lifecycle hook: " +
			"use exec, httpGet or sleep")}
	}
	return &Error{Step: "empty", Err: errors.New("the hook has no handler: set one of exec, httpGet, sleep")}
}

func (r *Runner) runExec(ctx context.Context, target Target, action *corev1.ExecAction) error {
	// The request has no timeout: ctx bounds the call.
	resp, err := r.exec.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: target.ContainerID, Cmd: action.Command})
	if err == nil && resp.ExitCode == 0 {
		return nil
	}
	var output int
	if err == nil {
		output = len(resp.Stdout) + len(resp.Stderr)
		err = fmt.Errorf("command %q exited with %d", strings.Join(action.Command, " "), resp.ExitCode)
	}
	r.logger.Info("hook command failed", "pod", target.Pod.Namespace+"/"+target.Pod.Name, "uid", target.Pod.UID,
		"container", target.Container.Name, "command", action.Command, "outputBytes", output, "error", err) // the output may be a Secret
	return &Error{Step: "exec", Err: err}
}

// runHTTP sends the request. Any response status counts as success.
func (r *Runner) runHTTP(ctx context.Context, target Target, action *corev1.HTTPGetAction) error {
	req, err := probe.NewHTTPRequest(ctx, action, target.Container, target.PodIP, "lifecycle")
	if err != nil {
		return err
	}
	err = r.do(req)
	if err == nil || !strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return err
	}
	plain := req.Clone(ctx)
	plain.URL.Scheme = "http"
	plain.Header.Del("Authorization") // credentials meant for TLS are not sent in the clear
	if plainErr := r.do(plain); plainErr != nil {
		return err
	}
	r.metrics.HTTPFallback()
	if r.recorder != nil {
		r.recorder.Eventf(target.Pod, corev1.EventTypeWarning, ReasonHTTPFallback,
			"request to HTTPS lifecycle hook %s got HTTP response, retry with HTTP succeeded", req.URL.Host)
	}
	return nil
}

func (r *Runner) do(req *http.Request) error {
	resp, err := r.http.Do(req)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, resp.Body, maxResponseBody)
	return resp.Body.Close()
}

func (r *Runner) sleep(ctx context.Context, d time.Duration) error {
	if !wakeup.Sleep(ctx, r.clock, d) {
		r.metrics.SleepCutShort()
		return errors.New("container terminated before sleep hook finished")
	}
	return nil
}
