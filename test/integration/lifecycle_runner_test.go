//go:build integration

package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/stretchr/testify/require"
)

// lifecycleRunner runs Pods from creation to deletion while a test causes faults. Each container writes a journal on the
// host, which has its real starts and exits, independently of the kubelet.
type lifecycleRunner struct {
	t       testing.TB
	config  *rest.Config
	client  kubernetes.Interface
	node    string // where the Pods run
	journal string // a directory of the host, with one for each Pod
	noExec  bool   // the node has no server

	mu       sync.Mutex
	cond     *sync.Cond
	pods     map[string]*corev1.Pod // as the API server has them
	observed map[string][]string    // the states of each Pod's container that the API server had, in order
}

func newLifecycleRunner(t testing.TB, kubeconfig, node string) *lifecycleRunner {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	l := &lifecycleRunner{t: t, config: config, client: client, node: node, journal: t.TempDir(), pods: map[string]*corev1.Pod{},
		observed: map[string][]string{}}
	l.cond = sync.NewCond(&l.mu)
	source := cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "default", fields.Everything())
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source, ObjectType: &corev1.Pod{}, Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: func(o any) { l.onPod(o, false) }, UpdateFunc: func(_, o any) { l.onPod(o, false) },
			DeleteFunc: func(o any) { l.onPod(o, true) },
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return l
}

func (l *lifecycleRunner) onPod(object any, gone bool) {
	if late, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = late.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if gone {
		delete(l.pods, pod.Name)
	} else {
		l.pods[pod.Name] = pod
		l.recordStatus(pod)
	}
	l.cond.Broadcast()
}

// recordStatus records the status of the Pod's container if it has changed. The caller holds mu.
func (l *lifecycleRunner) recordStatus(pod *corev1.Pod) {
	for _, c := range pod.Status.ContainerStatuses {
		status := fmt.Sprintf("restarts %d, %s, now %s, before %s", c.RestartCount, c.ContainerID, &c.State, &c.LastTerminationState)
		if all := l.observed[pod.Name]; len(all) == 0 || all[len(all)-1] != status {
			l.observed[pod.Name] = append(all, status)
		}
	}
}

// podError returns an error about a Pod, with all reported states of its container.
func (l *lifecycleRunner) podError(pod *corev1.Pod, format string, args ...any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Errorf("pod %s (uid %s): %w; reported: %s", pod.Name, pod.UID, fmt.Errorf(format, args...),
		strings.Join(l.observed[pod.Name], " | "))
}

// waitPod waits until the Pod, or nil if there is none, satisfies the condition.
func (l *lifecycleRunner) waitPod(ctx context.Context, name, what string, satisfied func(*corev1.Pod) bool) (*corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	defer context.AfterFunc(ctx, l.cond.Broadcast)()
	l.mu.Lock()
	defer l.mu.Unlock()
	for !satisfied(l.pods[name]) {
		if ctx.Err() != nil {
			var shown string
			if pod := l.pods[name]; pod != nil {
				shown = fmt.Sprintf("uid %s, deleted %v, %+v", pod.UID, pod.DeletionTimestamp, pod.Status)
			}
			return nil, fmt.Errorf("pod %s does not become %s: %s", name, what, shown)
		}
		l.cond.Wait()
	}
	return l.pods[name], nil
}

// retryUntil repeats a call until it succeeds, because the API server may be unreachable; done reports which errors count as success.
func retryUntil(ctx context.Context, call func() error, done func(error) bool) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, waitTimeout, true, func(context.Context) (bool, error) {
		last = call()
		return last == nil || done != nil && done(last), nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}

// scenario describes the lifecycle of one Pod.
type scenario struct {
	name string
	// script is what its container does after it has written its start into the journal.
	script string
	policy corev1.RestartPolicy
	// exits is how often the container exits by itself before it keeps running.
	exits int
	// finalPhase is the phase in which the Pod ends by itself; empty if it runs until it is deleted.
	finalPhase corev1.PodPhase
	// exec executes a command in the container.
	exec bool
	// deleteAfter deletes the Pod after that time, whatever its state is.
	deleteAfter time.Duration
	// grace is the grace period of the deletion; nil is the Pod's own.
	grace *int64
}

// sleepScript runs until SIGTERM.
const sleepScript = `trap 'exit 0' TERM; while :; do sleep 1000 & wait; done`

// randomScenario returns a random scenario.
func randomScenario(random *rand.Rand, name string) scenario {
	l := scenario{name: name, script: sleepScript, policy: corev1.RestartPolicyAlways}
	switch random.IntN(6) {
	case 0: // runs
	case 1:
		l.exec = true
	case 2:
		l.exits = 1
		// It runs for a while, because the runtime forgets a container whose start was interrupted: it must not exit
		// during its start.
		l.script = `if [ $(grep -c exit /journal/log) -lt 1 ]; then sleep 5; echo exit >> /journal/log; exit 3; fi; ` + sleepScript
	case 3:
		l.policy, l.finalPhase, l.script = corev1.RestartPolicyNever, corev1.PodSucceeded, `echo exit >> /journal/log; exit 0`
	case 4:
		l.policy, l.finalPhase, l.script = corev1.RestartPolicyNever, corev1.PodFailed, `echo exit >> /journal/log; exit 4`
	case 5:
		l.deleteAfter = time.Duration(random.IntN(2000)+1) * time.Millisecond
	}
	if random.IntN(5) == 0 {
		l.grace = new(int64)
	}
	return l
}

// marker is in the command line of the first process of a Pod's container.
func (l *lifecycleRunner) marker(name string) string { return markersOn(l.node) + name + ";" }

// markersOn is how the markers of the Pods on a node begin. Several tests may run at the same time on one machine, also in network namespaces
// of their own, where each calls its node home.
func markersOn(node string) string {
	return "pod-on-" + node + "-of-test-" + strconv.Itoa(os.Getpid()) + "-"
}

func (l *lifecycleRunner) pod(life *scenario) *corev1.Pod {
	script := ": " + l.marker(life.name) + " echo start >> /journal/log; " + life.script
	grace, kind := int64(2), corev1.HostPathDirectoryOrCreate
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: life.name},
		Spec: corev1.PodSpec{
			NodeName: l.node, RestartPolicy: life.policy, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: shellImage, ImagePullPolicy: corev1.PullNever,
				Command: []string{"/bin/busybox", "sh", "-c", script},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "journal", MountPath: "/journal"}, {Name: "memory", MountPath: "/memory"},
				},
			}},
			Volumes: []corev1.Volume{
				{Name: "journal", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{
					Path: filepath.Join(l.journal, life.name), Type: &kind}}},
				{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
					Medium: corev1.StorageMediumMemory, SizeLimit: resource.NewQuantity(1<<20, resource.BinarySI)}}},
			},
		},
	}
}

// runOne runs one scenario from the creation to the deletion of its Pod, and returns what was wrong.
func (l *lifecycleRunner) runOne(ctx context.Context, life scenario) error {
	if err := retryUntil(ctx, func() error {
		_, err := l.client.CoreV1().Pods("default").Create(ctx, l.pod(&life), metav1.CreateOptions{})
		return err
	}, apierrors.IsAlreadyExists); err != nil {
		return fmt.Errorf("create pod %s: %w", life.name, err)
	}
	err := l.waitOutcome(ctx, &life)
	return errors.Join(err, l.deletePod(ctx, &life))
}

// waitOutcome waits until the Pod can be deleted, and checks its state.
func (l *lifecycleRunner) waitOutcome(ctx context.Context, life *scenario) error {
	if life.deleteAfter > 0 {
		select {
		case <-time.After(life.deleteAfter): // the moment is random on purpose
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	satisfied := func(pod *corev1.Pod) bool {
		return pod != nil && isReady(pod) && pod.Status.ContainerStatuses[0].RestartCount >= int32(life.exits)
	}
	if life.finalPhase != "" {
		satisfied = func(pod *corev1.Pod) bool { return pod != nil && finished(pod) }
	}
	pod, err := l.waitPod(ctx, life.name, "ready or finished", satisfied)
	if err != nil {
		return err
	}
	if life.finalPhase != "" && pod.Status.Phase != life.finalPhase {
		return l.podError(pod, "ended as %s, not as %s", pod.Status.Phase, life.finalPhase)
	}
	if life.exec {
		if err := retryUntil(ctx, func() error { return l.exec(ctx, life.name) }, nil); err != nil {
			return fmt.Errorf("exec in pod %s: %w", life.name, err)
		}
	}
	return l.checkJournal(life, pod)
}

// checkJournal compares the status of a Pod with its journal.
func (l *lifecycleRunner) checkJournal(life *scenario, pod *corev1.Pod) error {
	var starts, exits int
	// A container counts as running a moment before it has written its first line.
	if err := retryUntil(l.t.Context(), func() (err error) {
		if starts, exits, err = l.readJournal(life.name); err == nil && starts < life.exits+1 {
			err = fmt.Errorf("the journal of pod %s has %d starts", life.name, starts)
		}
		return err
	}, nil); err != nil {
		return err
	}
	restarts := int(pod.Status.ContainerStatuses[0].RestartCount)
	if restarts != life.exits {
		return l.podError(pod, "restart count %d, but its container ended %d times by itself (%d starts, %d exits)",
			restarts, life.exits, starts, exits)
	}
	if starts != life.exits+1 {
		return l.podError(pod, "%w: %d starts with %d restarts (%d exits)", errTooManyStarts, starts, restarts, exits)
	}
	return nil
}

// errTooManyStarts is a container that was started more often than its Pod reports.
var errTooManyStarts = errors.New("started too often")

// readJournal counts the starts and exits in a journal.
func (l *lifecycleRunner) readJournal(name string) (starts, exits int, err error) {
	data, err := os.ReadFile(filepath.Join(l.journal, name, "log"))
	if err != nil {
		return 0, 0, fmt.Errorf("read the journal of pod %s: %w", name, err)
	}
	return strings.Count(string(data), "start\n"), strings.Count(string(data), "exit\n"), nil
}

// exec runs a command in the Pod's container.
func (l *lifecycleRunner) exec(ctx context.Context, name string) error {
	request := l.client.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name(name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: []string{"/bin/busybox", "echo", name}, Stdout: true}, scheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(l.config, "GET", request.URL().String())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	var out bytes.Buffer
	if err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out}); err != nil {
		return err
	}
	if out.String() != name+"\n" {
		return fmt.Errorf("the command printed %q", out.String())
	}
	return nil
}

// deletePod deletes the Pod and waits until its object is gone.
func (l *lifecycleRunner) deletePod(ctx context.Context, life *scenario) error {
	if err := retryUntil(ctx, func() error {
		return l.client.CoreV1().Pods("default").Delete(ctx, life.name, metav1.DeleteOptions{GracePeriodSeconds: life.grace})
	}, apierrors.IsNotFound); err != nil {
		return fmt.Errorf("delete pod %s: %w", life.name, err)
	}
	_, err := l.waitPod(ctx, life.name, "gone", func(pod *corev1.Pod) bool { return pod == nil })
	return err
}

// run runs that many scenarios, some at a time, and returns what was wrong.
func (l *lifecycleRunner) run(ctx context.Context, seed uint64, count, atOnce int) error {
	random := rand.New(rand.NewPCG(seed, 1))
	queue := make(chan scenario, count)
	for i := range count {
		next := randomScenario(random, fmt.Sprintf("pod%d", i))
		next.exec = next.exec && !l.noExec
		queue <- next
	}
	close(queue)
	errs := make([]error, atOnce)
	var group sync.WaitGroup
	for i := range atOnce {
		group.Go(func() {
			for next := range queue {
				errs[i] = errors.Join(errs[i], l.runOne(ctx, next))
			}
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// startHealthy starts Pods that must not be affected, and returns a check of that.
func (l *lifecycleRunner) startHealthy(ctx context.Context, count int) (check func() error) {
	before := make([]*corev1.Pod, count)
	named := make([]scenario, count)
	for i := range count {
		named[i] = scenario{name: fmt.Sprintf("healthy%d", i), script: sleepScript, policy: corev1.RestartPolicyAlways}
		_, err := l.client.CoreV1().Pods("default").Create(ctx, l.pod(&named[i]), metav1.CreateOptions{})
		require.NoError(l.t, err)
		before[i], err = l.waitPod(ctx, named[i].name, "ready", func(pod *corev1.Pod) bool { return pod != nil && isReady(pod) })
		require.NoError(l.t, err)
	}
	return func() error {
		var errs []error
		for i := range named {
			pod, err := l.waitPod(ctx, named[i].name, "ready", func(pod *corev1.Pod) bool { return pod != nil && isReady(pod) })
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if id := pod.Status.ContainerStatuses[0].ContainerID; id != before[i].Status.ContainerStatuses[0].ContainerID {
				errs = append(errs, fmt.Errorf("pod %s: a healthy container was replaced: %s", pod.Name, id))
			}
			errs = append(errs, l.checkJournal(&named[i], pod))
		}
		return errors.Join(errs...)
	}
}
