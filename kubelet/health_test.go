package kubelet

import (
	"net"
	"path/filepath"
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

// TestHealthWaitsForTheWorkers has the place where all changes of Pods pass hang: the check does not answer, until it
// goes on.
func TestHealthWaitsForTheWorkers(t *testing.T) {
	dir, handler := t.TempDir(), stuck{make(chan struct{}), make(chan struct{})}
	k, err := NewMainKubelet(&kubeletconfig.KubeletConfiguration{PodLogsDir: filepath.Join(dir, "log")}, &KubeletDeps{
		DockerClient: fake.New(clocktesting.NewFakePassiveClock(time.Now())),
		Options: []Option{
			WithRootDir(filepath.Join(dir, "root")), WithNode("n", net.IPv4(10, 0, 0, 1)), WithPodAdmitHandler(handler),
		},
	}, true)
	require.NoError(t, err)
	checks := k.checks()
	require.Len(t, checks, 1)
	require.Equal(t, "syncloop", checks[0].Name())
	require.NoError(t, checks[0].Check(nil))
	added, answered := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(added)
		k.HandlePodAdditions([]*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}}})
	}()
	<-handler.asked
	go func() { answered <- checks[0].Check(nil) }()
	select {
	case <-answered:
		require.Fail(t, "healthy while nothing moves")
	case <-time.After(50 * time.Millisecond): // that nothing comes has no event
	}
	close(handler.release)
	require.NoError(t, <-answered)
	<-added
}
