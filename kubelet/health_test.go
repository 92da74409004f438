package kubelet

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/lifecycle"
)

// stuck is an admission handler that hangs until it is let go.
type stuck struct{ asked, release chan struct{} }

// Admit implements lifecycle.PodAdmitHandler.
func (s stuck) Admit(*lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	close(s.asked)
	<-s.release
	return lifecycle.PodAdmitResult{Admit: true}
}

// TestHealthFindsWhatHangs has the place where all changes of Pods pass hang: the node agent is ill until it goes on.
func TestHealthFindsWhatHangs(t *testing.T) {
	dir, handler := t.TempDir(), stuck{make(chan struct{}), make(chan struct{})}
	clk := clocktesting.NewFakeClock(time.Now())
	k, err := NewMainKubelet(&kubeletconfig.KubeletConfiguration{PodLogsDir: filepath.Join(dir, "log")}, &KubeletDeps{
		DockerClient: fake.New(clk),
		Options: []Option{
			WithRootDir(filepath.Join(dir, "root")), WithNode("n", net.IPv4(10, 0, 0, 1)), WithPodAdmitHandler(handler),
			func(k *Kubelet) { k.deps.Clock = clk },
		},
	}, true)
	require.NoError(t, err)
	require.NoError(t, k.Healthy(t.Context()))
	<-k.Serving()
	added := make(chan struct{})
	go func() {
		defer close(added)
		k.HandlePodAdditions([]*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}})
	}()
	<-handler.asked
	ill := make(chan error, 1)
	go func() { ill <- k.Healthy(t.Context()) }()
	var verdict error
	require.Eventually(t, func() bool {
		clk.Step(patience / 2)
		select {
		case verdict = <-ill:
			if verdict != nil && !strings.Contains(verdict.Error(), "syncloop") {
				go func() { ill <- k.Healthy(t.Context()) }() // so fast a clock leaves nobody time to answer
				return false
			}
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond)
	require.ErrorContains(t, verdict, "health check syncloop: no answer since")
	clk.Step(patience)
	require.Error(t, k.Healthy(t.Context()), "whoever asks then need not wait again")
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, k.Healthy(impatient))
	handler.release <- struct{}{}
	<-added
	require.Eventually(t, func() bool { return k.Healthy(t.Context()) == nil }, time.Minute, time.Millisecond)
}

// TestOneQuestionAtATime asks a part that hangs again and again.
func TestOneQuestionAtATime(t *testing.T) {
	asked, release := make(chan struct{}, 10), make(chan struct{})
	clk := clocktesting.NewFakeClock(time.Now())
	check := &answers{name: "part", clock: clk, ask: func() { asked <- struct{}{}; <-release }}
	request := httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody)
	ended := make(chan error, 3)
	for range cap(ended) {
		go func() { ended <- check.Check(request) }()
	}
	<-asked
	close(release)
	for range cap(ended) {
		require.NoError(t, <-ended)
	}
	require.NoError(t, check.Check(request))
}
