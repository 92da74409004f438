package podcertificate_test

import (
	"context"
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/podcertificate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var pod = &corev1.Pod{
	ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}, Spec: corev1.PodSpec{ServiceAccountName: "sa"},
}

func source(kind string) *corev1.PodCertificateProjection {
	return &corev1.PodCertificateProjection{
		SignerName: "example.com/s", KeyType: kind, MaxExpirationSeconds: ptr.To[int32](7200),
		UserAnnotations: map[string]string{"example.com/a": "b"},
	}
}

// fixture is a Manager and the API server with the signer's side.
type fixture struct {
	*podcertificate.Manager
	t       *testing.T
	client  *fake.Clientset
	clock   *testclock.FakeClock
	events  *record.FakeRecorder
	changed chan types.UID
	made    chan *certificatesv1beta1.PodCertificateRequest
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		t: t, clock: testclock.NewFakeClock(time.Now().Truncate(time.Second)), events: record.NewFakeRecorder(10),
		client:  fake.NewClientset(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "sa", Namespace: "ns", UID: "sa-uid"}}),
		changed: make(chan types.UID, 100), made: make(chan *certificatesv1beta1.PodCertificateRequest, 10),
	}
	count := 0
	f.client.PrependReactor("create", "podcertificaterequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		made := action.(clienttesting.CreateAction).GetObject().(*certificatesv1beta1.PodCertificateRequest)
		count++
		made.Name = fmt.Sprint(made.GenerateName, count)
		err := f.client.Tracker().Create(action.GetResource(), made.DeepCopy(), "ns")
		f.made <- made
		return true, made, err
	})
	var err error
	f.Manager, err = podcertificate.New(podcertificate.Deps{
		Client: f.client, Recorder: f.events, Clock: f.clock,
		Node: func() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n-uid"}} },
	}, "n")
	require.NoError(t, err)
	f.Subscribe(func(uid types.UID) { f.changed <- uid })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Start(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-ended) })
	return f
}

// request returns the next request.
func (f *fixture) request() *certificatesv1beta1.PodCertificateRequest {
	f.t.Helper()
	select {
	case made := <-f.made:
		return made
	case <-time.After(time.Minute):
		require.Fail(f.t, "no request")
		return nil
	}
}

// waitTimer returns when the manager waits for what is due next.
func (f *fixture) waitTimer() {
	f.t.Helper()
	require.Eventually(f.t, f.clock.HasWaiters, time.Minute, time.Millisecond)
}

// stepUntil moves the clock until the condition holds: a timer that was set while the clock moved is late.
func (f *fixture) stepUntil(holds func() bool) {
	f.t.Helper()
	require.Eventually(f.t, func() bool { f.clock.Step(time.Second); return holds() }, time.Minute, time.Millisecond)
}

// finish is the signer's result.
func (f *fixture) finish(made *certificatesv1beta1.PodCertificateRequest, kind, reason string, status certificatesv1beta1.PodCertificateRequestStatus) {
	f.t.Helper()
	status.Conditions = []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: "why"}}
	made = made.DeepCopy()
	made.Status = status
	_, err := f.client.CertificatesV1beta1().PodCertificateRequests("ns").UpdateStatus(f.t.Context(), made, metav1.UpdateOptions{})
	require.NoError(f.t, err)
}

func (f *fixture) issue(made *certificatesv1beta1.PodCertificateRequest, text string, life time.Duration) {
	f.t.Helper()
	now := f.clock.Now()
	f.finish(made, certificatesv1beta1.PodCertificateRequestConditionTypeIssued, "Issued", certificatesv1beta1.PodCertificateRequestStatus{
		CertificateChain: "a comment\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text), Headers: map[string]string{"a": "b"}})),
		NotBefore:        ptr.To(metav1.NewTime(now)), NotAfter: ptr.To(metav1.NewTime(now.Add(life))),
		BeginRefreshAt: ptr.To(metav1.NewTime(now.Add(life / 2))),
	})
}

// start calls Bundle in the background.
func (f *fixture) start(kind string) <-chan error {
	result := make(chan error, 1)
	go func() { _, _, err := f.Bundle(f.t.Context(), pod, "v", 1, source(kind)); result <- err }()
	return result
}

func (f *fixture) waitChanged() {
	f.t.Helper()
	select {
	case uid := <-f.changed:
		require.Equal(f.t, types.UID("u"), uid)
	case <-time.After(time.Minute):
		require.Fail(f.t, "no notification")
	}
}

// TestEachKeyTypeIsIssued obtains a certificate for a key of each type, whose possession the request proves.
func TestEachKeyTypeIsIssued(t *testing.T) {
	for _, kind := range []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t)
			result := f.start(kind)
			made := f.request()
			require.Equal(t, "example.com/s", made.Spec.SignerName)
			require.Equal(t, "p u sa sa-uid n n-uid 7200", fmt.Sprint(made.Spec.PodName, " ", made.Spec.PodUID, " ", made.Spec.ServiceAccountName,
				" ", made.Spec.ServiceAccountUID, " ", made.Spec.NodeName, " ", made.Spec.NodeUID, " ", *made.Spec.MaxExpirationSeconds))
			require.Equal(t, map[string]string{"example.com/a": "b"}, made.Spec.UnverifiedUserAnnotations)
			require.Equal(t, types.UID("u"), made.OwnerReferences[0].UID)
			proof, err := x509.ParseCertificateRequest(made.Spec.StubPKCS10Request)
			require.NoError(t, err)
			require.NoError(t, proof.CheckSignature())
			f.issue(made, "leaf", time.Hour)
			require.NoError(t, <-result)
			key, chain, err := f.Bundle(t.Context(), pod, "v", 1, source(kind))
			require.NoError(t, err)
			require.Equal(t, "-----BEGIN CERTIFICATE-----\nbGVhZg==\n-----END CERTIFICATE-----\n", string(chain), "without comments and headers")
			block, rest := pem.Decode(key)
			require.Empty(t, rest)
			private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
			require.NoError(t, err)
			require.Equal(t, proof.PublicKey, private.(crypto.Signer).Public())
		})
	}
}

// TestCertificateIsReplaced requests the next certificate when the signer wants it, and reports one that is late.
func TestCertificateIsReplaced(t *testing.T) {
	f := newFixture(t)
	result := f.start("ED25519")
	f.issue(f.request(), "first", 2*time.Hour)
	require.NoError(t, <-result)
	f.waitChanged()
	before, _, err := f.Bundle(t.Context(), pod, "v", 1, source("ED25519"))
	require.NoError(t, err)
	require.Equal(t, 1, testutil.CollectAndCount(f, "kubelet_podcertificate_states"))

	f.waitTimer()
	f.clock.Step(time.Hour - time.Second)
	require.Empty(t, f.made)
	f.clock.Step(6 * time.Minute) // with jitter
	next := f.request()
	same, _, err := f.Bundle(t.Context(), pod, "v", 1, source("ED25519"))
	require.NoError(t, err)
	require.Equal(t, before, same, "until the next one is issued")
	f.stepUntil(func() bool { return len(f.events.Events) > 0 })
	require.Contains(t, <-f.events.Events, "CertificateOverdueForRefresh")
	require.NoError(t, testutil.CollectAndCompare(f, strings.NewReader(
		"# HELP kubelet_podcertificate_states Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state.\n"+
			"# TYPE kubelet_podcertificate_states gauge\n"+
			`kubelet_podcertificate_states{signer_name="example.com/s",state="overdue_for_refresh"} 1`+"\n")))
	f.issue(next, "second", time.Hour)
	f.waitChanged()
	after, chain, err := f.Bundle(t.Context(), pod, "v", 1, source("ED25519"))
	require.NoError(t, err)
	require.NotEqual(t, before, after, "a new key for each certificate")
	require.Contains(t, string(chain), "c2Vjb25k")
	f.Forget("u")
	require.Zero(t, testutil.CollectAndCount(f, "kubelet_podcertificate_states"))
}

// TestRefusalIsFinal has the signer deny and fail requests.
func TestRefusalIsFinal(t *testing.T) {
	for kind, state := range map[string]string{
		certificatesv1beta1.PodCertificateRequestConditionTypeDenied: "denied", certificatesv1beta1.PodCertificateRequestConditionTypeFailed: "failed",
	} {
		f := newFixture(t)
		result := f.start("ED25519")
		f.finish(f.request(), kind, certificatesv1beta1.PodCertificateRequestConditionUnsupportedKeyType, certificatesv1beta1.PodCertificateRequestStatus{})
		require.ErrorContains(t, <-result, "UnsupportedKeyType: why")
		require.Contains(t, <-f.events.Events, "Warning "+kind)
		require.NoError(t, testutil.CollectAndCompare(f, strings.NewReader(
			"# HELP kubelet_podcertificate_states Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state.\n"+
				"# TYPE kubelet_podcertificate_states gauge\n"+
				`kubelet_podcertificate_states{signer_name="example.com/s",state="`+state+`"} 1`+"\n")))
		f.clock.Step(24 * time.Hour)
		_, _, err := f.Bundle(t.Context(), pod, "v", 1, source("ED25519"))
		require.ErrorContains(t, err, "UnsupportedKeyType")
		require.Empty(t, f.made)
	}
}

// TestSlowSignerIsNamed waits some seconds for the signer, says whose turn it is, and notifies when the certificate is there.
func TestSlowSignerIsNamed(t *testing.T) {
	f := newFixture(t)
	result := f.start("ED25519")
	made := f.request()
	f.stepUntil(func() bool {
		select {
		case err := <-result:
			require.Error(t, err)
			if strings.Contains(err.Error(), `is a signer "example.com/s" running?`) {
				return true
			}
			result = f.start("ED25519") // the manager had not recorded the response to its request
		default:
		}
		return false
	})
	f.issue(made, "late", time.Hour)
	f.waitChanged()
	_, _, err := f.Bundle(t.Context(), pod, "v", 1, source("ED25519"))
	require.NoError(t, err)
}

// TestDeletedRequestIsReplaced deletes a request before its signer has seen it.
func TestDeletedRequestIsReplaced(t *testing.T) {
	f := newFixture(t)
	result := f.start("ED25519")
	first := f.request()
	require.NoError(t, f.client.CertificatesV1beta1().PodCertificateRequests("ns").Delete(t.Context(), first.Name, metav1.DeleteOptions{}))
	var second *certificatesv1beta1.PodCertificateRequest
	require.Eventually(t, func() bool {
		f.clock.Step(time.Second)
		select {
		case second = <-f.made:
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond)
	require.NotEqual(t, first.Name, second.Name)
	f.issue(second, "leaf", time.Hour)
	<-result // it may have timed out by the steps of the clock
	f.waitChanged()
	_, _, err := f.Bundle(t.Context(), pod, "v", 1, source("ED25519"))
	require.NoError(t, err)
}

// TestFailedRequestIsRetried has the API server refuse requests, and names what fails.
func TestFailedRequestIsRetried(t *testing.T) {
	f := newFixture(t)
	refused := 0
	f.client.PrependReactor("get", "serviceaccounts", func(clienttesting.Action) (bool, runtime.Object, error) {
		if refused++; refused <= 2 {
			return true, nil, errors.New("down")
		}
		return false, nil, nil
	})
	result := f.start("ED25519")
	require.Eventually(t, func() bool {
		f.clock.Step(time.Second)
		select {
		case made := <-f.made:
			f.issue(made, "leaf", time.Hour)
			return true
		default:
			return false
		}
	}, time.Minute, time.Millisecond)
	<-result
	f.waitChanged()
	_, _, err := f.Bundle(t.Context(), pod, "v", 1, source("ED25519"))
	require.NoError(t, err)
}

// TestClockThatIsFast: by the node's clock each new certificate should be replaced already.
func TestClockThatIsFast(t *testing.T) {
	f := newFixture(t)
	result := f.start("ED25519")
	f.clock.Step(24 * time.Hour)
	made, now := f.request(), f.clock.Now()
	f.finish(made, certificatesv1beta1.PodCertificateRequestConditionTypeIssued, "Issued", certificatesv1beta1.PodCertificateRequestStatus{
		CertificateChain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("leaf")})),
		NotBefore:        ptr.To(metav1.NewTime(now.Add(-24 * time.Hour))), BeginRefreshAt: ptr.To(metav1.NewTime(now.Add(-23 * time.Hour))),
		NotAfter: ptr.To(metav1.NewTime(now.Add(-22 * time.Hour))),
	})
	f.waitChanged()
	require.NoError(t, <-result)
	require.Never(t, func() bool { return len(f.made) > 0 }, 100*time.Millisecond, 10*time.Millisecond, "the API server gets no request at once")
	f.stepUntil(func() bool { return len(f.made) > 0 })
}
