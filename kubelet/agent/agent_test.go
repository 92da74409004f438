package agent

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/cm"
	"github.com/berth-dev/berth/kubelet/util/oom"
)

func TestConfigIsChecked(t *testing.T) {
	valid := Config{
		Node: NodeConfig{Name: "n", IPs: []net.IP{net.IPv4(10, 0, 0, 1)}}, RootDir: "/a", Logs: LogsConfig{PodsDir: "/logs"},
	}
	for want, change := range map[string]func(*Config){
		"Config.RootDir \"/x/../y\"":        func(c *Config) { c.RootDir = "/x/../y" },
		"Config.Logs.PodsDir \"\"":          func(c *Config) { c.Logs.PodsDir = "" },
		"Config.Node.Name":                  func(c *Config) { c.Node.Name = "" },
		"Config.Node.IPs":                   func(c *Config) { c.Node.IPs = nil },
		"Config.Server.CertFile":            func(c *Config) { c.Server.Addresses = []string{":1"} },
		"Config.Lock.ExitOnContention":      func(c *Config) { c.Lock.ExitOnContention = true },
		"Config.Images.CredentialProviders": func(c *Config) { c.Images.CredentialProviders = "x" },
		"Config.Pods.Max":                   func(c *Config) { c.Pods.Max = ptr.To[int64](-1) },
		"Config.Cgroups.CPUQuotaPeriod":     func(c *Config) { c.Cgroups.CPUQuotaPeriod = time.Microsecond },
		"Config.Logs.MonitorPeriod":         func(c *Config) { c.Logs.MonitorPeriod = time.Millisecond },
		"memoryThrottlingFactor 2":          func(c *Config) { c.Cgroups.MemoryQoS = &cm.MemoryQoSConfig{ThrottlingFactor: 2} },
		"tracing.samplingRatePerMillion": func(c *Config) {
			c.Tracing = &tracingapi.TracingConfiguration{SamplingRatePerMillion: ptr.To[int32](-1)}
		},
		"enforceNodeAllocatable": func(c *Config) { c.Cgroups.Enforcement.Enforce = []string{"all"} },
	} {
		config := valid
		change(&config)
		_, err := New(Deps{}, config)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, valid.complete())
}

func TestTwoPodsOfOneNameAreAnEvent(t *testing.T) {
	f := newFixture(t, func(*Deps, *Config) {})
	pod := func(uid types.UID) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns", UID: uid},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "app:1"}}}}
	}
	f.agent.SetStatic([]*corev1.Pod{pod("u-x"), pod("u-y")})
	require.Contains(t, f.nextEvent(t), "Warning FailedValidation ")
}

func TestResolverThatPodsCannotHaveIsAnEvent(t *testing.T) {
	recorder := record.NewFakeRecorder(1)
	b := &base{config: Config{Node: NodeConfig{Name: "n"}}, deps: Deps{Recorder: recorder}}
	b.checkResolver()
	require.Empty(t, recorder.Events, "none is configured")
	b.config.DNS.ResolvConf = filepath.Join(t.TempDir(), "absent")
	b.checkResolver()
	require.Contains(t, <-recorder.Events, "Warning CheckLimitsForResolvConf read the node's resolver file")
}

// TestComponentsStopInReverse starts components in order and stops each after those behind it.
func TestComponentsStopInReverse(t *testing.T) {
	started := make(chan string, 3)
	var stopped []string
	waiting := func(name string) component {
		return component{name: name, start: func(ctx context.Context) error {
			started <- name
			<-ctx.Done()
			stopped = append(stopped, name)
			return ctx.Err()
		}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- runComponents(ctx, []component{waiting("a"), waiting("b"), waiting("c")}) }()
	for range cap(started) {
		<-started
	}
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, []string{"c", "b", "a"}, stopped)

	stopped = nil
	broken := component{name: "broken", start: func(context.Context) error { return errors.New("no") }}
	finished := component{name: "finished", start: func(context.Context) error { return nil }}
	err := runComponents(t.Context(), []component{waiting("a"), finished, broken})
	require.EqualError(t, err, "broken: no")
	require.Equal(t, []string{"a"}, stopped)
}

// TestOOMScoreIsSetOnce sets the configured score when the agent starts, and none without one.
func TestOOMScoreIsSetOnce(t *testing.T) {
	var scores []int
	adjuster := &oom.OOMAdjuster{ApplyOOMScoreAdj: func(_, score int) error { scores = append(scores, score); return nil }}
	for _, score := range []*int{nil, ptr.To(-5)} {
		f := newFixture(t, func(d *Deps, c *Config) { d.OOMAdjuster, c.OOMScoreAdj = adjuster, score })
		require.NoError(t, f.agent.prepare())
	}
	require.Equal(t, []int{-5}, scores)
}

// TestMoreIsReservedThanThereIs: nothing would be left for Pods, and a mistake of the configuration would look like a full node.
func TestMoreIsReservedThanThereIs(t *testing.T) {
	f := newFixture(t, func(_ *Deps, c *Config) {
		c.Cgroups.Enforcement.KubeReserved = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Ei")}
	})
	require.ErrorContains(t, f.agent.prepare(), "together reserve 1Ei of memory, and the node has ")
}
