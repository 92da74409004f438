package images_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/images"
	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// privateRegistry is a runtime whose registry requires a login, unless it is open.
type privateRegistry struct {
	*fake.Runtime
	open bool
	// lost says that the connection is lost during a pull with the right login.
	lost bool
	// moved is the ID of the image, if it is another one than at first.
	moved string
}

func (g *privateRegistry) ImageStatus(ctx context.Context, in *runtimeapi.ImageStatusRequest, opts ...grpc.CallOption) (
	*runtimeapi.ImageStatusResponse, error,
) {
	found, err := g.Runtime.ImageStatus(ctx, in, opts...)
	if found.GetImage() != nil && g.moved != "" {
		found.Image = &runtimeapi.Image{Id: g.moved}
	}
	return found, err
}

func (g *privateRegistry) PullImage(ctx context.Context, in *runtimeapi.PullImageRequest, opts ...grpc.CallOption) (
	*runtimeapi.PullImageResponse, error,
) {
	if g.lost && in.GetAuth().GetUsername() == "good" {
		g.FailNext("PullImage", status.Error(codes.Unavailable, "connection lost"))
	}
	if !g.open && in.GetAuth().GetUsername() != "good" {
		g.FailNext("PullImage", status.Error(codes.Unknown, "authorization failed"))
	}
	return g.Runtime.PullImage(ctx, in, opts...)
}

// tenantFixture is a node on which several Pods use one private image.
type tenantFixture struct {
	t       *testing.T
	dir     string
	runtime *privateRegistry
	clock   *clocktesting.FakeClock
	events  *record.FakeRecorder
	records *pullrecords.Manager
	last    [2]*bool // whether the image of the last Ensure was present, and had to be pulled
	*images.Manager
}

func newTenantFixture(t *testing.T) *tenantFixture {
	n := &tenantFixture{t: t, dir: filepath.Join(t.TempDir(), "image_manager"), clock: clocktesting.NewFakeClock(time.Unix(1e9, 0))}
	n.runtime = &privateRegistry{Runtime: fake.New(n.clock)}
	n.restart()
	return n
}

func (n *tenantFixture) restart() {
	n.events = record.NewFakeRecorder(100)
	var err error
	n.records, err = pullrecords.New(pullrecords.Deps{Clock: n.clock}, pullrecords.Config{Dir: n.dir})
	require.NoError(n.t, err)
	n.Manager, err = images.New(images.Deps{
		Service: n.runtime, PullRecords: n.records, Clock: n.clock, Recorder: n.events,
		CountRequest: func(_ corev1.PullPolicy, present, pullRequired *bool) { n.last = [2]*bool{present, pullRequired} },
		Keyring: images.NewPullSecrets(secrets{
			"good":  `{"auths":{"reg.example":{"username":"good","password":"x"}}}`,
			"copy":  `{"auths":{"reg.example":{"username":"good","password":"x"}}}`,
			"bad":   `{"auths":{"reg.example":{"username":"bad","password":"x"}}}`,
			"other": `{"auths":{"elsewhere.example":{"username":"good","password":"x"}}}`,
		}),
	}, images.Config{})
	require.NoError(n.t, err)
}

// ensure calls Ensure for a Pod with these Secrets and returns the reason of its error and the number of pulls.
func (n *tenantFixture) ensure(policy corev1.PullPolicy, secrets ...string) (reason string, pulls int) {
	n.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: types.UID(n.t.Name() + time.Now().String())}}
	for _, name := range secrets {
		pod.Spec.ImagePullSecrets = append(pod.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	before := n.runtime.Calls("PullImage")
	_, err := n.Ensure(n.t.Context(), images.PullRequest{
		Pod: pod, Ref: &corev1.ObjectReference{}, Image: "reg.example/app:1", Policy: policy,
	})
	var refused *images.Error
	if err != nil {
		require.ErrorAs(n.t, err, &refused)
		reason = refused.Reason
	}
	return reason, n.runtime.Calls("PullImage") - before
}

// TestPrivateImage lets one Pod pull with a login, and others use the image after it.
func TestPrivateImage(t *testing.T) {
	n := newTenantFixture(t)
	check := func(policy corev1.PullPolicy, wantReason string, wantPulls int, secrets ...string) {
		t.Helper()
		reason, pulls := n.ensure(policy, secrets...)
		require.Equal(t, wantReason, reason)
		require.Equal(t, wantPulls, pulls)
	}
	check(corev1.PullIfNotPresent, "", 1, "good")
	for range 2 {
		check(corev1.PullIfNotPresent, "", 0, "good")
		check(corev1.PullNever, "", 0, "good")
		require.Equal(t, [2]*bool{ptr.To(true), ptr.To(false)}, n.last)
		check(corev1.PullIfNotPresent, "", 0, "copy")
		check(corev1.PullNever, "", 0, "bad", "copy")
		check(corev1.PullIfNotPresent, images.ReasonPull, 1)
		check(corev1.PullNever, images.ReasonNeverPull, 0)
		check(corev1.PullIfNotPresent, images.ReasonPull, 1, "bad")
		check(corev1.PullIfNotPresent, images.ReasonPull, 1, "other")
		require.Equal(t, [2]*bool{ptr.To(true), ptr.To(true)}, n.last, "its login has to be verified")
		check(corev1.PullNever, images.ReasonNeverPull, 0, "bad")
		require.Equal(t, [2]*bool{ptr.To(true), ptr.To(true)}, n.last)
		check(corev1.PullNever, images.ReasonNeverPull, 0, "missing")
		n.restart()
	}
	// The registry becomes public, which the next pull records.
	n.runtime.open = true
	check(corev1.PullNever, images.ReasonNeverPull, 0)
	check(corev1.PullIfNotPresent, "", 1)
	check(corev1.PullNever, "", 0)
	n.restart()
	check(corev1.PullNever, "", 0)
}

// TestNeverPullDoesNotRevealImage compares the error for a missing image with that for a present one of another tenant.
func TestNeverPullDoesNotRevealImage(t *testing.T) {
	n := newTenantFixture(t)
	pull := func() (error, string) {
		_, err := n.Ensure(t.Context(), want("reg.example/app:1", corev1.PullNever))
		require.Error(t, err)
		return err, <-n.events.Events
	}
	absent, absentEvent := pull()
	reason, _ := n.ensure(corev1.PullIfNotPresent, "good")
	require.Empty(t, reason)
	for len(n.events.Events) > 0 {
		<-n.events.Events
	}
	refused, refusedEvent := pull()
	require.Equal(t, absent, refused)
	require.Equal(t, absentEvent, refusedEvent)
}

// TestImportedImage uses an image that was not pulled: every Pod may use it, and no credentials are read.
func TestImportedImage(t *testing.T) {
	n := newTenantFixture(t)
	n.runtime.AddImage("reg.example/app:1")
	reason, pulls := n.ensure(corev1.PullIfNotPresent, "missing")
	require.Empty(t, reason)
	require.Zero(t, pulls)
	require.Contains(t, <-n.events.Events, "already present on machine and can be accessed by the pod")
	require.NoDirExists(t, n.dir)
}

// TestPullOfUnknownEnd loses the connection during a pull; the image is present afterwards.
func TestPullOfUnknownEnd(t *testing.T) {
	n := newTenantFixture(t)
	n.runtime.FailNext("PullImage", status.Error(codes.Unavailable, "connection lost"))
	reason, _ := n.ensure(corev1.PullIfNotPresent, "good")
	require.Equal(t, images.ReasonPull, reason)
	n.runtime.AddImage("reg.example/app:1")
	reason, _ = n.ensure(corev1.PullNever)
	require.Equal(t, images.ReasonNeverPull, reason)
	n.restart()
	reason, _ = n.ensure(corev1.PullNever)
	require.Equal(t, images.ReasonNeverPull, reason)
	n.runtime.FailNext("PullImage", status.Error(codes.Unknown, "no such image"))
	reason, _ = n.ensure(corev1.PullIfNotPresent, "good")
	require.Equal(t, images.ReasonPull, reason)
	reason, _ = n.ensure(corev1.PullNever)
	require.Equal(t, images.ReasonNeverPull, reason, "a failure does not open the image")
	reason, _ = n.ensure(corev1.PullIfNotPresent, "good")
	require.Empty(t, reason)
	reason, _ = n.ensure(corev1.PullNever, "copy")
	require.Empty(t, reason)
}

// TestPullThatTheRuntimeGaveUp has the registry not answer: the runtime says so with the code of a call that took too long, or ended the
// pull because it made no progress. The image that was on the node before stays usable by all Pods.
func TestPullThatTheRuntimeGaveUp(t *testing.T) {
	for _, code := range []codes.Code{codes.DeadlineExceeded, codes.Canceled} {
		n := newTenantFixture(t)
		n.runtime.AddImage("reg.example/app:1")
		n.runtime.FailNext("PullImage", status.Error(code, "failed to pull and unpack image: dial tcp 192.0.2.1:443: i/o timeout"))
		reason, _ := n.ensure(corev1.PullAlways)
		require.Equal(t, images.ReasonPull, reason)
		for range 2 {
			reason, pulls := n.ensure(corev1.PullIfNotPresent)
			require.Empty(t, reason)
			require.Zero(t, pulls)
			n.restart()
		}
	}
}

// TestPullOfUnknownEndOfAnImportedImage loses the connection while an image is pulled that was imported: that one stays usable by all Pods,
// another one that the pull may bring does not become so.
func TestPullOfUnknownEndOfAnImportedImage(t *testing.T) {
	n := newTenantFixture(t)
	n.runtime.AddImage("reg.example/app:1")
	unknown := func() {
		n.runtime.FailNext("PullImage", status.Error(codes.Unavailable, "connection lost"))
		reason, _ := n.ensure(corev1.PullAlways)
		require.Equal(t, images.ReasonPull, reason)
	}
	free := func(want bool) {
		reason, pulls := n.ensure(corev1.PullNever)
		require.Equal(t, want, reason == "", reason)
		require.Zero(t, pulls)
	}
	for range 2 {
		unknown()
		free(true)
	}
	n.records.Reconcile([]*runtimeapi.Image{{Id: "sha256:reg.example/app:1", RepoTags: []string{"reg.example/app:1"}}}, n.clock.Now())
	free(true)
	unknown()
	n.runtime.moved = "sha256:another"
	free(false)
	unknown()
	free(false)
}

// TestPullOfUnknownEndWithSeveralLogins is refused with the first login, and loses the connection with the second one.
func TestPullOfUnknownEndWithSeveralLogins(t *testing.T) {
	n := newTenantFixture(t)
	n.runtime.lost = true
	reason, pulls := n.ensure(corev1.PullIfNotPresent, "bad", "good")
	require.Equal(t, images.ReasonPull, reason)
	require.Equal(t, 2, pulls)
	n.runtime.lost = false
	n.runtime.AddImage("reg.example/app:1")
	reason, _ = n.ensure(corev1.PullNever)
	require.Equal(t, images.ReasonNeverPull, reason, "the image may be there because of the second login")
	reason, _ = n.ensure(corev1.PullIfNotPresent, "good")
	require.Empty(t, reason)
}
