package images_test

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/cri/fake"
	"github.com/berth-dev/berth/kubelet/images"
)

func newFixture(t *testing.T) (*images.Manager, *fake.Runtime, *clocktesting.FakeClock, *record.FakeRecorder) {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	runtime, events := fake.New(clock), record.NewFakeRecorder(100)
	m, err := images.New(images.Deps{Service: runtime, Clock: clock, Recorder: events}, images.Config{})
	require.NoError(t, err)
	return m, runtime, clock, events
}

func want(image string, policy corev1.PullPolicy) images.PullRequest {
	return images.PullRequest{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}, Ref: &corev1.ObjectReference{},
		Image: image, Policy: policy,
	}
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		name    string
		image   string
		policy  corev1.PullPolicy
		present bool
		pulls   int
		reason  string
	}{
		{"present", "app:1", corev1.PullIfNotPresent, true, 0, ""},
		{"absent", "app:1", corev1.PullIfNotPresent, false, 1, ""},
		{"always", "app:1", corev1.PullAlways, true, 1, ""},
		{"never, present", "app:1", corev1.PullNever, true, 0, ""},
		{"never, absent", "app:1", corev1.PullNever, false, 0, images.ReasonNeverPull},
		{"not a name", "App:1", corev1.PullIfNotPresent, false, 0, images.ReasonInvalidName},
		{"not an ID", "sha256:app 1", corev1.PullIfNotPresent, false, 0, images.ReasonInvalidName},
		{"not an ID, never", "sha256:app/1", corev1.PullNever, false, 0, images.ReasonInvalidName},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, runtime, _, _ := newFixture(t)
			if c.present {
				runtime.AddImage(c.image)
			}
			image, err := m.Ensure(context.Background(), want(c.image, c.policy))
			require.Equal(t, c.pulls, runtime.Calls("PullImage"))
			if c.reason == "" {
				require.NoError(t, err)
				require.Equal(t, "sha256:app:1", image.Id)
				return
			}
			var refused *images.Error
			require.ErrorAs(t, err, &refused)
			require.Equal(t, c.reason, refused.Reason)
		})
	}
}

// specRecorder records the images as they are requested of the runtime.
type specRecorder struct {
	*fake.Runtime
	specs []*runtimeapi.ImageSpec
}

func (r *specRecorder) ImageStatus(ctx context.Context, in *runtimeapi.ImageStatusRequest, opts ...grpc.CallOption) (
	*runtimeapi.ImageStatusResponse, error,
) {
	r.specs = append(r.specs, in.Image)
	return r.Runtime.ImageStatus(ctx, in, opts...)
}

func (r *specRecorder) PullImage(ctx context.Context, in *runtimeapi.PullImageRequest, opts ...grpc.CallOption) (
	*runtimeapi.PullImageResponse, error,
) {
	r.specs = append(r.specs, in.Image)
	return r.Runtime.PullImage(ctx, in, opts...)
}

// TestRuntimeGetsThePodsAnnotations with the image: by them it may choose one of several platforms.
func TestRuntimeGetsThePodsAnnotations(t *testing.T) {
	runtime := &specRecorder{Runtime: fake.New(clocktesting.NewFakeClock(time.Unix(1e9, 0)))}
	m, err := images.New(images.Deps{Service: runtime}, images.Config{})
	require.NoError(t, err)
	request := want("app", corev1.PullIfNotPresent)
	request.Pod.Annotations, request.RuntimeHandler = map[string]string{"platform": "small"}, "vm"
	_, err = m.Ensure(t.Context(), request)
	require.NoError(t, err)
	require.Len(t, runtime.specs, 3, "before the pull, the pull, and after it")
	for _, spec := range runtime.specs[:2] {
		require.Equal(t, &runtimeapi.ImageSpec{Image: "app:latest", RuntimeHandler: "vm", Annotations: map[string]string{"platform": "small"}}, spec)
	}
}

// TestRequestsAreCounted by what each finds out about the image.
func TestRequestsAreCounted(t *testing.T) {
	yes, no := ptr.To(true), ptr.To(false)
	for _, c := range []struct {
		name, image           string
		policy, counted       corev1.PullPolicy
		fails                 bool
		present, pullRequired *bool
	}{
		{name: "present", image: "here:1", policy: corev1.PullIfNotPresent, present: yes, pullRequired: no},
		{name: "default policy", image: "here:1", counted: corev1.PullIfNotPresent, present: yes, pullRequired: no},
		{name: "absent", image: "app:1", policy: corev1.PullIfNotPresent, present: no, pullRequired: yes},
		{name: "always", image: "here:1", policy: corev1.PullAlways, pullRequired: yes},
		{name: "never, present", image: "here:1", policy: corev1.PullNever, present: yes, pullRequired: no},
		{name: "never, absent", image: "app:1", policy: corev1.PullNever, present: no},
		{name: "not a name", image: "App:1", policy: corev1.PullIfNotPresent},
		{name: "not inspected", image: "here:1", policy: corev1.PullIfNotPresent, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			runtime, calls := fake.New(clocktesting.NewFakeClock(time.Unix(1e9, 0))), 0
			m, err := images.New(images.Deps{Service: runtime, CountRequest: func(policy corev1.PullPolicy, present, pullRequired *bool) {
				calls++
				require.Equal(t, cmp.Or(c.counted, c.policy), policy)
				require.Equal(t, c.present, present)
				require.Equal(t, c.pullRequired, pullRequired)
			}}, images.Config{})
			require.NoError(t, err)
			runtime.AddImage("here:1")
			if c.fails {
				runtime.FailNext("ImageStatus", errors.New("boom"))
			}
			_, _ = m.Ensure(t.Context(), want(c.image, c.policy))
			require.Equal(t, 1, calls)
		})
	}
}

func TestDefaultTag(t *testing.T) {
	m, runtime, _, _ := newFixture(t)
	runtime.AddImage("app:latest")
	_, err := m.Ensure(context.Background(), want("app", corev1.PullNever))
	require.NoError(t, err)
}

func TestPullBackOffDoublesAndSuccessEndsIt(t *testing.T) {
	m, runtime, clock, _ := newFixture(t)
	ensure := func() *images.Error {
		_, err := m.Ensure(context.Background(), want("app:1", corev1.PullIfNotPresent))
		var refused *images.Error
		errors.As(err, &refused)
		return refused
	}
	for _, delay := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		runtime.FailNext("PullImage", errors.New("no such host"))
		require.Equal(t, images.ReasonPull, ensure().Reason)
		waits := ensure()
		require.Equal(t, images.ReasonBackOff, waits.Reason)
		require.Contains(t, waits.Message, "no such host", "the message of the last failure")
		require.Equal(t, delay*time.Second, waits.RetryAt.Sub(clock.Now()))
		clock.Step(delay * time.Second)
	}
	require.Nil(t, ensure())
	m.Forget("u")
}

// TestPullBackOffStartsAnewAfterTenMinutes has pulls fail that take long themselves: the wait after such a pull is short again.
func TestPullBackOffStartsAnewAfterTenMinutes(t *testing.T) {
	m, runtime, clock, _ := newFixture(t)
	fails := func() *images.Error {
		runtime.FailNext("PullImage", errors.New("timeout"))
		_, err := m.Ensure(t.Context(), want("app:1", corev1.PullIfNotPresent))
		require.ErrorContains(t, err, images.ReasonPull)
		_, err = m.Ensure(t.Context(), want("app:1", corev1.PullIfNotPresent))
		var waits *images.Error
		require.ErrorAs(t, err, &waits)
		require.Equal(t, images.ReasonBackOff, waits.Reason)
		return waits
	}
	for _, c := range []struct{ sinceLast, delay time.Duration }{
		{0, 10 * time.Second},
		{10 * time.Minute, 20 * time.Second},
		{10 * time.Minute, 40 * time.Second},
		{10*time.Minute + time.Millisecond, 10 * time.Second},
		{time.Minute, 20 * time.Second},
	} {
		clock.Step(c.sinceLast)
		require.Equal(t, c.delay, fails().RetryAt.Sub(clock.Now()), "%v after the last failure", c.sinceLast)
	}
}

func TestEvents(t *testing.T) {
	m, runtime, _, events := newFixture(t)
	_, err := m.Ensure(context.Background(), want("app:1", corev1.PullIfNotPresent))
	require.NoError(t, err)
	require.Contains(t, <-events.Events, "Normal Pulling")
	require.Contains(t, <-events.Events, "Normal Pulled Successfully pulled")
	runtime.FailNext("PullImage", errors.New("boom"))
	_, err = m.Ensure(context.Background(), want("app:2", corev1.PullIfNotPresent))
	require.Error(t, err)
	require.Contains(t, <-events.Events, "Normal Pulling")
	require.Contains(t, <-events.Events, "Warning Failed Failed to pull image \"app:2\": boom")
	require.Contains(t, <-events.Events, "Warning Failed Error: ErrImagePull")
	_, err = m.Ensure(context.Background(), want("app:2", corev1.PullIfNotPresent))
	require.Error(t, err)
	require.Contains(t, <-events.Events, "Normal BackOff Back-off pulling image \"app:2\"")
	require.Contains(t, <-events.Events, "Warning Failed Error: ImagePullBackOff")
	runtime.FailNext("ImageStatus", errors.New("boom"))
	_, err = m.Ensure(context.Background(), want("app:3", corev1.PullIfNotPresent))
	require.Error(t, err)
	require.Contains(t, <-events.Events, "Warning InspectFailed Failed to inspect image \"app:3\": ")
	_, err = m.Ensure(context.Background(), want("APP", corev1.PullIfNotPresent))
	require.Error(t, err)
	require.Contains(t, <-events.Events, "Warning InspectFailed Failed to apply default image tag \"APP\"")
	_, err = m.Ensure(context.Background(), want("app:4", corev1.PullNever))
	require.Error(t, err)
	require.Contains(t, <-events.Events, "Warning ErrImageNeverPull Container image \"app:4\" is not present with pull policy of Never")
	_, err = m.Ensure(context.Background(), want("app:1", corev1.PullIfNotPresent))
	require.NoError(t, err)
	require.Contains(t, <-events.Events, "Normal Pulled Container image \"app:1\" already present on machine")
}

// TestMessageOfSeveralLogins fails with each of two logins, for the same cause and for two.
func TestMessageOfSeveralLogins(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "a"}, {Name: "b"}}
	for want, causes := range map[string][2]string{
		"denied":                     {"denied", "denied"},
		"[denied, connection reset]": {"denied", "connection reset"},
	} {
		runtime, events := fake.New(clocktesting.NewFakeClock(time.Unix(1e9, 0))), record.NewFakeRecorder(10)
		m, err := images.New(images.Deps{Service: runtime, Recorder: events, Keyring: images.NewPullSecrets(secrets{
			"a": `{"auths":{"reg.example":{"username":"a"}}}`, "b": `{"auths":{"reg.example":{"username":"b"}}}`,
		})}, images.Config{})
		require.NoError(t, err)
		for _, cause := range causes {
			runtime.FailNext("PullImage", status.Error(codes.Unknown, cause))
		}
		_, err = m.Ensure(t.Context(), images.PullRequest{Pod: pod, Ref: &corev1.ObjectReference{}, Image: "reg.example/app:1"})
		var failed *images.Error
		require.ErrorAs(t, err, &failed)
		require.Equal(t, want, failed.Message)
		require.Contains(t, <-events.Events, "Normal Pulling")
		require.Equal(t, `Warning Failed Failed to pull image "reg.example/app:1": `+want, <-events.Events)
	}
}

// TestReasonsOfTheRuntime has errors with a reason at their beginning, and one that only contains its name.
func TestReasonsOfTheRuntime(t *testing.T) {
	for _, c := range []struct{ text, reason, message string }{
		{"RegistryUnavailable", images.ReasonUnavailable, "image pull failed for app:1 because the registry is unavailable"},
		{"RegistryUnavailable: no route", images.ReasonUnavailable, "image pull failed for app:1 because the registry is unavailable: no route"},
		{"SignatureValidationFailed: no key", images.ReasonBadSignature,
			"image pull failed for app:1 because the signature validation failed: no key"},
		{"policy x: SignatureValidationFailed is ignored", images.ReasonPull, "policy x: SignatureValidationFailed is ignored"},
	} {
		m, runtime, _, events := newFixture(t)
		runtime.FailNext("PullImage", status.Error(codes.Unknown, c.text))
		for _, reason := range []string{c.reason, images.ReasonBackOff} {
			_, err := m.Ensure(t.Context(), want("app:1", corev1.PullAlways))
			var failed *images.Error
			require.ErrorAs(t, err, &failed)
			require.Equal(t, reason, failed.Reason)
			message := c.message
			if reason == images.ReasonBackOff {
				message = `Back-off pulling image "app:1": ` + c.reason + ": " + message
			}
			require.Equal(t, message, failed.Message)
		}
		require.Contains(t, <-events.Events, "Normal Pulling")
		require.Equal(t, `Warning Failed Failed to pull image "app:1": `+c.text, <-events.Events)
		require.Equal(t, "Warning Failed Error: "+c.reason, <-events.Events)
	}
}

func TestPullsASecondAreBounded(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	runtime := fake.New(clock)
	m, err := images.New(images.Deps{Service: runtime, Clock: clock}, images.Config{PullQPS: 1, PullBurst: 2})
	require.NoError(t, err)
	pull := func(image string) error {
		_, err := m.Ensure(t.Context(), want(image, corev1.PullAlways))
		return err
	}
	require.NoError(t, pull("one:1"))
	require.NoError(t, pull("two:1"))
	err = pull("three:1")
	require.ErrorContains(t, err, "ErrImagePull: pull QPS exceeded")
	require.Equal(t, 2, runtime.Calls("PullImage"))
	clock.Step(10 * time.Second)
	require.NoError(t, pull("three:1"), "after its backoff")
}

func TestPullsWaitForTheirTurn(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	runtime, events := fake.New(clock), record.NewFakeRecorder(10)
	var observed []time.Duration
	m, err := images.New(images.Deps{
		Service: runtime, Clock: clock, Recorder: events,
		ObservePull: func(_ uint64, took time.Duration) { observed = append(observed, took) },
	}, images.Config{MaxParallel: 1})
	require.NoError(t, err)
	release := runtime.Block("PullImage")
	done := make(chan error, 2)
	for _, image := range []string{"one:1", "two:1"} {
		go func() {
			_, err := m.Ensure(t.Context(), want(image, corev1.PullAlways))
			done <- err
		}()
	}
	require.Eventually(t, func() bool { return runtime.Calls("PullImage") == 1 }, time.Minute, time.Millisecond)
	for range 2 {
		require.Contains(t, <-events.Events, "Normal Pulling", "also of the one that waits")
	}
	// A caller whose context ends while it is queued does not pull.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = m.Ensure(ctx, want("three:1", corev1.PullAlways))
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, runtime.Calls("PullImage"), "one at a time")
	require.Contains(t, <-events.Events, "Normal Pulling")
	clock.Step(5 * time.Second)
	release()
	require.NoError(t, <-done)
	require.NoError(t, <-done)
	require.Equal(t, 2, runtime.Calls("PullImage"))
	require.Contains(t, <-events.Events, "in 5s (5s including waiting)")
	require.Contains(t, <-events.Events, "in 0s (5s including waiting)")
	require.Equal(t, []time.Duration{5 * time.Second, 5 * time.Second}, observed)
}

// hangingKeyring has credentials for all images but one, for which it waits.
type hangingKeyring struct{ image string }

func (k hangingKeyring) Credentials(ctx context.Context, _ *corev1.Pod, image string) ([]images.Credential, error) {
	if image != k.image {
		return nil, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestCredentialsThatTakeLong delay no pull of another image: while they are obtained no pull has its turn for them.
func TestCredentialsThatTakeLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := images.New(images.Deps{
			Service: fake.New(clocktesting.NewFakeClock(time.Now())), Keyring: hangingKeyring{"slow:1"},
		}, images.Config{MaxParallel: 1})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		slow, fast := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := m.Ensure(ctx, want("slow:1", corev1.PullAlways))
			slow <- err
		}()
		synctest.Wait()
		go func() {
			_, err := m.Ensure(t.Context(), want("fast:1", corev1.PullAlways))
			fast <- err
		}()
		synctest.Wait()
		select {
		case err := <-fast:
			require.NoError(t, err)
		default:
			t.Error("the pull waits for the credentials of another image")
		}
		cancel()
		require.ErrorIs(t, <-slow, context.Canceled)
	})
}
