package token_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet/token"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issuer is the API server's token endpoint: it issues token-1, token-2, …
type issuer struct {
	clock *testclock.FakeClock
	ahead time.Duration // how far the API server's clock is ahead of the node's

	mu       sync.Mutex
	requests []authenticationv1.TokenRequestSpec
	accounts []types.UID // that the requests name
	err      error
}

func (i *issuer) react(action clienttesting.Action) (bool, runtime.Object, error) {
	if action.GetSubresource() != "token" {
		return false, nil, nil
	}
	request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest).DeepCopy()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.requests, i.accounts = append(i.requests, request.Spec), append(i.accounts, request.UID)
	if i.err != nil {
		return true, nil, i.err
	}
	request.Status.Token = fmt.Sprintf("token-%d", len(i.requests))
	life := time.Duration(*request.Spec.ExpirationSeconds) * time.Second
	request.Status.ExpirationTimestamp = metav1.NewTime(i.clock.Now().Add(i.ahead + life))
	return true, request, nil
}

func (i *issuer) fail(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.err = err
}

type fixture struct {
	*token.Manager
	issuer  *issuer
	clock   *testclock.FakeClock
	renewed chan types.UID
}

func start(t *testing.T) *fixture {
	t.Helper()
	clock := testclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	f := &fixture{issuer: &issuer{clock: clock}, clock: clock, renewed: make(chan types.UID, 10)}
	client := fake.NewClientset()
	client.PrependReactor("create", "serviceaccounts", f.issuer.react)
	var err error
	f.Manager, err = token.New(token.Deps{Client: client, Clock: clock})
	require.NoError(t, err)
	t.Cleanup(f.Subscribe(func(uid types.UID) { f.renewed <- uid }))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Start(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return f
}

var pod = &corev1.Pod{
	ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", UID: "uid-1"},
	Spec:       corev1.PodSpec{ServiceAccountName: "robot"},
}

func projection(audience string, seconds int64) *corev1.ServiceAccountTokenProjection {
	return &corev1.ServiceAccountTokenProjection{Audience: audience, ExpirationSeconds: &seconds}
}

// waitTimer returns when the manager waits for a renewal.
func (f *fixture) waitTimer(t *testing.T) {
	t.Helper()
	require.Eventually(t, f.clock.HasWaiters, time.Minute, time.Millisecond)
}

func TestTokenIsBoundToItsPodAndKept(t *testing.T) {
	f := start(t)
	got, err := f.Token(t.Context(), pod, projection("vault", 3600))
	require.NoError(t, err)
	require.Equal(t, "token-1", got)
	got, err = f.Token(t.Context(), pod, projection("vault", 3600))
	require.NoError(t, err)
	require.Equal(t, "token-1", got, "the second call must not ask again")
	got, err = f.Token(t.Context(), pod, projection("", 3600))
	require.NoError(t, err)
	require.Equal(t, "token-2", got, "another audience is another token")
	request := f.issuer.requests[0]
	require.Equal(t, []string{"vault"}, request.Audiences)
	require.EqualValues(t, 3600, *request.ExpirationSeconds)
	require.Equal(t, &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "uid-1"},
		request.BoundObjectRef)
	require.Empty(t, f.issuer.requests[1].Audiences)
	f.Forget(pod.UID)
	require.Zero(t, f.Len())
}

// TestRequestIsForTheAccountAsItWas lets the API server refuse a token of an account that has the same name and is another.
func TestRequestIsForTheAccountAsItWas(t *testing.T) {
	f := start(t)
	_, err := f.Token(t.Context(), pod, projection("vault", 3600))
	require.NoError(t, err)
	got, err := f.Request(t.Context(), pod, "uid-of-robot", "registry")
	require.NoError(t, err)
	require.Equal(t, "token-2", got)
	require.Equal(t, []types.UID{"", "uid-of-robot"}, f.issuer.accounts)
	require.Equal(t, []string{"registry"}, f.issuer.requests[1].Audiences)
	require.Equal(t, 1, f.Len(), "it is not kept")
}

// TestRenewalDoesNotDependOnTheAPIServersClock has a node whose clock is so far ahead that a new token seems to have expired, and one whose
// clock is behind, by which a token would be renewed long after its end.
func TestRenewalDoesNotDependOnTheAPIServersClock(t *testing.T) {
	for _, ahead := range []time.Duration{-2 * time.Hour, -time.Hour, 2 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			f := start(t)
			f.issuer.ahead = ahead
			for range 2 {
				got, err := f.Token(t.Context(), pod, projection("", 3600))
				require.NoError(t, err)
				require.Equal(t, "token-1", got)
			}
			f.waitTimer(t)
			f.clock.Step(48 * time.Minute)
			require.Equal(t, pod.UID, <-f.renewed)
		})
	}
}

func TestRenewalAtFourFifthsOfLifeOrADay(t *testing.T) {
	for _, test := range []struct {
		seconds int64
		renewal time.Duration
	}{
		{600, 8 * time.Minute},
		{3600, 48 * time.Minute},
		{7 * 24 * 3600, 24 * time.Hour},
	} {
		t.Run(fmt.Sprint(test.seconds), func(t *testing.T) {
			f := start(t)
			_, err := f.Token(t.Context(), pod, projection("", test.seconds))
			require.NoError(t, err)
			f.waitTimer(t)
			f.clock.Step(test.renewal - 10*time.Second - time.Millisecond)
			f.waitTimer(t)
			got, err := f.Token(t.Context(), pod, projection("", test.seconds))
			require.NoError(t, err)
			require.Equal(t, "token-1", got, "too early")
			f.clock.Step(10*time.Second + time.Millisecond)
			require.Equal(t, pod.UID, <-f.renewed)
			got, err = f.Token(t.Context(), pod, projection("", test.seconds))
			require.NoError(t, err)
			require.Equal(t, "token-2", got)
		})
	}
}

func TestOldTokenServesUntilItExpires(t *testing.T) {
	f := start(t)
	_, err := f.Token(t.Context(), pod, projection("", 600))
	require.NoError(t, err)
	f.issuer.fail(errors.New("API server is down"))
	f.waitTimer(t)
	f.clock.Step(9 * time.Minute)
	f.waitTimer(t)
	got, err := f.Token(t.Context(), pod, projection("", 600))
	require.NoError(t, err)
	require.Equal(t, "token-1", got)
	f.clock.Step(2 * time.Minute)
	_, err = f.Token(t.Context(), pod, projection("", 600))
	require.ErrorContains(t, err, "API server is down", "an expired token must not be handed out")
	f.issuer.fail(nil)
	got, err = f.Token(t.Context(), pod, projection("", 600))
	require.NoError(t, err)
	require.NotEqual(t, "token-1", got)
}

// TestTokenThatIsRefusedForAMoment: the API server's authorizer may learn of a Pod later than its node; the Pod's user
// must not notice.
func TestTokenThatIsRefusedForAMoment(t *testing.T) {
	for _, refusal := range []error{
		apierrors.NewForbidden(corev1.Resource("serviceaccounts"), "robot", errors.New("no relationship found")),
		apierrors.NewNotFound(corev1.Resource("pods"), "web"),
	} {
		f := start(t)
		f.issuer.fail(refusal)
		value := make(chan string, 1)
		go func() {
			got, err := f.Token(t.Context(), pod, projection("", 600))
			assert.NoError(t, err)
			value <- got
		}()
		f.waitTimer(t)
		f.issuer.fail(nil)
		f.clock.Step(4 * time.Millisecond)
		require.Equal(t, "token-2", <-value)
	}
}

func TestForgottenTokenIsNotRenewed(t *testing.T) {
	f := start(t)
	_, err := f.Token(t.Context(), pod, projection("", 600))
	require.NoError(t, err)
	f.waitTimer(t)
	f.Forget(pod.UID)
	f.clock.Step(time.Hour)
	other := pod.DeepCopy()
	other.UID = "uid-2"
	_, err = f.Token(t.Context(), other, projection("", 600))
	require.NoError(t, err)
	f.waitTimer(t)
	f.clock.Step(time.Hour)
	require.Equal(t, other.UID, <-f.renewed)
	for _, request := range f.issuer.requests[1:] {
		require.Equal(t, other.UID, request.BoundObjectRef.UID)
	}
}
