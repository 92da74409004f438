//go:build integration

package integration

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/timeline"
	"github.com/berth-dev/berth/timeline/remote"
)

// maxVerdictDelay is how long after a cause can be known the verdict may name it. Where answering takes long, a change may have
// to wait for the answer to the one before it, and then for its own; maxVerdictRuns of them are allowed then.
const (
	maxVerdictDelay = 100 * time.Millisecond
	maxVerdictRuns  = 4
)

// explainLoop explains an object again after each change in the cluster, as `berth explain -w` does.
type explainLoop struct {
	c      *cluster
	client kubernetes.Interface
	source explain.Source
	// delays is how long after the change that made it possible each right verdict came.
	delays []verdictDelay
	// durations is how long each answer took, right or wrong.
	durations []time.Duration

	mu        sync.Mutex // guards the two below
	wake      chan struct{}
	changedAt time.Time // of the first change that is not answered yet
}

// verdictDelay is how late the verdict on a cause came. Without a cause it was only asked on the way.
type verdictDelay struct {
	cause string
	delay time.Duration
}

func newExplainLoop(t *testing.T, c *cluster) *explainLoop {
	t.Helper()
	records := remote.NewClient(filepath.Join(c.runDir(), "berth.sock"))
	a := &explainLoop{c: c, client: c.client(), wake: make(chan struct{}, 1)}
	a.source = explain.Source{Client: a.client, Records: records}
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(a.client, 0)
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(), factory.Core().V1().Events().Informer(),
		factory.Core().V1().PersistentVolumeClaims().Informer(), factory.Core().V1().Nodes().Informer(),
		factory.Apps().V1().ReplicaSets().Informer(), factory.Core().V1().PersistentVolumes().Informer(),
		factory.Storage().V1().VolumeAttachments().Informer(), factory.Storage().V1().CSINodes().Informer(),
	} {
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { a.changed() }, UpdateFunc: func(_, _ any) { a.changed() }, DeleteFunc: func(any) { a.changed() },
		})
		require.NoError(t, err)
	}
	factory.StartWithContext(ctx)
	factory.WaitForCacheSync(ctx.Done())
	followed := make(chan error, 1)
	go func() { followed <- records.Stages(ctx, "", nil, func(timeline.Change) { a.changed() }) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-followed)
		factory.Shutdown()
	})
	return a
}

func (a *explainLoop) changed() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.changedAt.IsZero() {
		a.changedAt = time.Now()
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// waitReason asks at every change until the answer gives the reason.
func (a *explainLoop) waitReason(t *testing.T, kind, namespace, name, reason string) *explain.Explanation {
	t.Helper()
	deadline := time.NewTimer(waitTimeout)
	defer deadline.Stop()
	var last *explain.Explanation
	a.mu.Lock()
	a.changedAt = time.Now() // what happened before the question does not count
	a.mu.Unlock()
	for {
		a.mu.Lock()
		changed := a.changedAt
		a.changedAt = time.Time{}
		a.mu.Unlock()
		asked := time.Now()
		answer, err := explain.Explain(t.Context(), a.source, kind, namespace, name)
		a.durations = append(a.durations, time.Since(asked))
		if err == nil && answer.Reason == reason {
			by := time.Duration(0)
			if !changed.IsZero() {
				by = time.Since(changed)
			}
			a.delays = append(a.delays, verdictDelay{delay: by})
			return answer
		}
		if err == nil {
			last = answer
		}
		select {
		case <-a.wake:
		case <-deadline.C:
			t.Fatalf("no verdict %s on %s %s; the last was %+v (%v)", reason, kind, name, last, err)
		}
	}
}

// causeCase is one cause: how it is brought about, on what object, and what the answer must say.
type causeCase struct {
	name, reason, wantText string
	kind, object           string // the kind is Pod if empty
	namespace              string
	// resolveName gives the object's name once the cause was brought about, where it is not known before.
	resolveName func() string
	setUp       func(t *testing.T, c *cluster, a *explainLoop)
	undo        func(t *testing.T, c *cluster, a *explainLoop)
}

// TestWhy brings about every cause of docs/why.md that one node can show, for real, and asks for it.
func TestWhy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.up("--unsafe-no-fsync")
	importShell(t, c)
	a := newExplainLoop(t, c)
	catalogue, err := os.ReadFile("../../docs/why.md")
	require.NoError(t, err)
	for _, cause := range slices.Concat(driverCauses(t, c), attachCauses(t, c), volumeEndCauses(), claimCauses(), nodeCauses(), volumeCauses(),
		imageCauses(t), containerCauses(), endCauses(), apiCauses()) {
		t.Run(strings.ReplaceAll(cause.name, " ", "_"), func(t *testing.T) {
			if cause.kind == "" {
				cause.kind = explain.KindPod
			}
			if cause.namespace == "" {
				cause.namespace = "default"
			}
			cause.setUp(t, c, a)
			if cause.undo != nil {
				defer cause.undo(t, c, a)
			}
			if cause.resolveName != nil {
				cause.object = cause.resolveName()
			}
			answer := a.waitReason(t, cause.kind, cause.namespace, cause.object, cause.reason)
			a.delays[len(a.delays)-1].cause = cause.name
			require.Contains(t, answer.Verdict+"\n"+evidence(answer), cause.wantText)
			require.True(t, answer.Stuck())
			if answer.State != explain.Failed {
				require.NotEmpty(t, answer.Next, "the explanation says what to do")
			}
			require.True(t, strings.Contains(string(catalogue), "`"+cause.reason+"`"), "docs/why.md lists %s, as every reason", cause.reason)
			checkWithoutRecords(t, a, cause)
			word := explain.Words(cause.kind)[0]
			out, err := c.run("explain", word+"/"+cause.object, "-n", cause.namespace, "--exit-code")
			require.Error(t, err, "the exit code says so")
			require.Contains(t, out, cause.wantText)
			if dir := os.Getenv("WHY_OUTPUT"); dir != "" {
				require.NoError(t, os.WriteFile(filepath.Join(dir, cause.reason+"--"+cause.object), []byte(out), 0o600))
			}
		})
	}
	t.Run("all that is stuck", func(t *testing.T) {
		out, err := c.run("explain", "--all", "--exit-code")
		require.Error(t, err)
		require.Contains(t, out, "HostPathType")
	})
	t.Run("stages are counted", func(t *testing.T) { checkStageMetrics(t, c) })
	t.Run("in time", func(t *testing.T) { a.checkInTime(t) })
	t.Run("a start is accounted for", func(t *testing.T) { checkBreakdown(t, c, a) })
}

// checkWithoutRecords asks as if the cluster's kubelet were not Berth's: from the API alone, and it must say so.
func checkWithoutRecords(t *testing.T, a *explainLoop, cause causeCase) {
	t.Helper()
	answer, err := explain.Explain(t.Context(), explain.Source{Client: a.client}, cause.kind, cause.namespace, cause.object)
	require.NoError(t, err)
	require.True(t, answer.Stuck(), "%+v", answer)
	if cause.kind != explain.KindNode && cause.kind != explain.KindDeployment { // no component records stages of these
		require.Contains(t, strings.Join(answer.Unseen, "\n"), "no running berth to query")
	}
}

// checkStageMetrics looks for the stages' histograms where Prometheus does.
func checkStageMetrics(t *testing.T, c *cluster) {
	t.Helper()
	for where, text := range c.metricsPages() {
		for _, line := range []string{
			`berth_stage_duration_seconds_count{kind="Pod",owner="kubelet",result="success",stage="Sandbox"}`,
			`berth_stage_duration_seconds_count{kind="Pod",owner="kubelet",result="error",stage="MountVolume"}`,
			`berth_stage_duration_seconds_count{kind="PersistentVolumeClaim",owner="provision",result="error",stage="Provisioning"}`,
			`berth_stage_wait_seconds_count{owner="kubelet",stage="StatusWritten"}`, "berth_stages_lost_total 0",
		} {
			require.True(t, strings.Contains(text, line), "%s: no %s", where, line)
		}
	}
}

// checkInTime requires that verdicts come soon after the change that made them possible. The median is judged, for a
// single verdict may have to wait for its turn on a busy machine. The log says how late each was: on a quiet machine none
// is later than knowable.
func (a *explainLoop) checkInTime(t *testing.T) {
	t.Helper()
	late := slices.DeleteFunc(a.delays, func(l verdictDelay) bool { return l.cause == "" || l.cause == slowAPI }) // which takes its time by itself
	require.NotEmpty(t, late)
	slices.SortFunc(late, func(x, y verdictDelay) int { return int(x.delay - y.delay) })
	for _, l := range late {
		t.Logf("%8.1f ms  %s", l.delay.Seconds()*1000, l.cause)
	}
	slices.Sort(a.durations)
	answering := a.durations[len(a.durations)/2]
	t.Logf("%d answers took %v in the median", len(a.durations), answering)
	median := late[len(late)/2]
	require.Less(t, median.delay, max(maxVerdictDelay, maxVerdictRuns*answering), median.cause)
}

// checkBreakdown starts Pods and requires that the parts of each start sum to its whole.
func checkBreakdown(t *testing.T, c *cluster, a *explainLoop) {
	manifests := map[string]string{
		"plain": podManifest("plain", shell("sleep 1000", ""), ""),
		"full": podManifest("full", shell("sleep 1000", `"readinessProbe": {"exec": {"command": ["/bin/busybox", "true"]}},
			"volumeMounts": [{"name": "v", "mountPath": "/data"}]`), `"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "full"}}],
			"initContainers": [`+strings.Replace(shell("true", ""), "{", `{"name": "first", `, 1)+`]`),
	}
	c.apply(claimManifest("full", `"storageClassName": "berth-local"`))
	for name, manifest := range manifests {
		c.apply(manifest)
		c.waitPod("name="+name, "ready", isReady)
		answer := a.waitReason(t, explain.KindPod, "default", name, "Ready")
		for answer.TimeBreakdown == nil {
			<-a.wake
			answer = a.waitReason(t, explain.KindPod, "default", name, "Ready")
		}
		sum, sandbox := 0.0, 0.0
		for _, part := range answer.TimeBreakdown.Segments {
			sum += part.Ms
			if part.Name == timeline.StageSandbox {
				sandbox = part.Ms
			}
		}
		t.Logf("%s: %.1f ms, unaccounted %.2f ms", name, answer.TimeBreakdown.TotalMs, answer.TimeBreakdown.UnaccountedMs)
		require.InDelta(t, answer.TimeBreakdown.TotalMs, sum, 0.5)
		// On a slow machine the time between two stages is longer, as the whole start is.
		require.Less(t, answer.TimeBreakdown.UnaccountedMs, max(2.0, answer.TimeBreakdown.TotalMs/20), "%+v", answer.TimeBreakdown.Segments)
		require.NotZero(t, sandbox, "the start waited for its sandbox, whatever else went on: %+v", answer.TimeBreakdown.Segments)
	}
}

func evidence(answer *explain.Explanation) string {
	var b strings.Builder
	for _, e := range answer.Evidence {
		b.WriteString(e.Object + " " + e.Field + ": " + e.Text + "\n")
	}
	return b.String()
}
