package agent

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	cgroupslib "github.com/opencontainers/cgroups"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/internal/testlog"
	"github.com/berth-dev/berth/kubelet/cm"
	podconfig "github.com/berth-dev/berth/kubelet/config"
	"github.com/berth-dev/berth/kubelet/eviction/localstorage"
)

// logBuffer holds the lines that are logged.
type logBuffer struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

// Write implements io.Writer.
func (b *logBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines.Write(line)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.lines.String()
}

// TestCriticalPodsAreNotEvicted has Pods with a volume over its limit. Only the one that is not critical is evicted.
func TestCriticalPodsAreNotEvicted(t *testing.T) {
	if os.Getuid() != 0 || cgroupslib.IsCgroup2UnifiedMode() {
		t.Skip("needs root and cgroup v1")
	}
	log := &logBuffer{}
	f := newFixture(t, func(d *Deps, c *Config) {
		d.Logger, c.Cgroups.Enforcement.Enforce = testlog.New(t, slog.NewTextHandler(log, nil)), []string{cm.EnforceNone}
	})
	f.runtime.SetCgroupDriver(runtimeapi.CgroupDriver_CGROUPFS)
	f.runtime.AddImage("app:1")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.agent.Start(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
		require.NoError(t, f.agent.Cleanup(context.WithoutCancel(t.Context())))
	}()
	add := func(name, source string, priority *int32) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: name, Namespace: "ns", UID: types.UID("u-" + name), CreationTimestamp: metav1.NewTime(f.clock.Now()),
				Annotations: map[string]string{podconfig.SourceAnnotation: source},
			},
			Spec: corev1.PodSpec{
				EnableServiceLinks: ptr.To(false), DNSPolicy: corev1.DNSDefault, Priority: priority,
				Containers: []corev1.Container{{Name: name, Image: "app:1"}},
			},
		}
		f.agent.HandlePod(podconfig.Change{Op: podconfig.Add, Pod: p})
		require.Eventually(t, func() bool { return f.runtime.Running()[name] == 1 }, time.Minute, time.Millisecond)
		return p
	}
	excess := localstorage.Excess{Signal: localstorage.SignalEmptyDir, Message: "too large"}
	for _, p := range []*corev1.Pod{
		add("file", podconfig.SourceFile, nil), add("url", podconfig.SourceHTTP, nil),
		add("cluster-critical", podconfig.SourceAPI, ptr.To[int32](2_000_000_000)),
		add("node-critical", podconfig.SourceAPI, ptr.To[int32](2_000_001_000)),
	} {
		f.agent.pods.evictOverLimit(f.agent.base, p, excess)
		require.Contains(t, log.String(), `msg="cannot evict a critical Pod" pod=ns/`+p.Name)
	}
	plain := add("plain", podconfig.SourceAPI, ptr.To[int32](1_000_000_000))
	f.agent.pods.evictOverLimit(f.agent.base, plain, excess)
	for event := ""; event != "Warning Evicted too large"; event = f.nextEvent(t) {
		require.NotContains(t, event, "Evicted")
	}
	require.Eventually(t, func() bool { return f.runtime.Running()["plain"] == 0 }, time.Minute, time.Millisecond)
	for _, name := range []string{"file", "url", "cluster-critical", "node-critical"} {
		require.Equal(t, 1, f.runtime.Running()[name], name)
	}
	require.NotContains(t, log.String(), "pod=ns/plain uid=u-plain reason")
}
