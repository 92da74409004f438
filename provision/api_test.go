package provision_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/provision"
)

type option = func(*provision.ProvisionController) error

// The interface that code written for this library's first version is compiled against. It must not change.
var (
	_ func([]string) option                  = provision.AdditionalProvisionerNames
	_ func(cache.SharedIndexInformer) option = provision.ClaimsInformer
	_ func(cache.SharedInformer) option      = provision.ClassesInformer
	_ func(wait.Backoff) option              = provision.CreateProvisionedPVBackoff
	_ func(time.Duration) option             = provision.CreateProvisionedPVInterval
	_ func(workqueue.RateLimiter) option     = provision.CreateProvisionedPVLimiter
	_ func(int) option                       = provision.CreateProvisionedPVRetryCount
	_ func(bool) option                      = provision.ExponentialBackOffOnError
	_ func(int) option                       = provision.FailedDeleteThreshold
	_ func(int) option                       = provision.FailedProvisionThreshold
	_ func(bool) option                      = provision.LeaderElection
	_ func(string) option                    = provision.LeaderElectionNamespace
	_ func(time.Duration) option             = provision.LeaseDuration
	_ func(string) option                    = provision.MetricsAddress
	_ func(string) option                    = provision.MetricsPath
	_ func(int32) option                     = provision.MetricsPort
	_ func(workqueue.RateLimiter) option     = provision.RateLimiter
	_ func(time.Duration) option             = provision.RenewDeadline
	_ func(time.Duration) option             = provision.ResyncPeriod
	_ func(time.Duration) option             = provision.RetryPeriod
	_ func(int) option                       = provision.Threadiness
	_ func(cache.SharedInformer) option      = provision.VolumesInformer

	_ func(kubernetes.Interface, string, provision.Provisioner, string,
		...func(*provision.ProvisionController) error) *provision.ProvisionController = provision.NewProvisionController
	_ func(*provision.ProvisionController) bool             = (*provision.ProvisionController).HasRun
	_ func(*provision.ProvisionController, <-chan struct{}) = (*provision.ProvisionController).Run
	_ func(kubernetes.Interface, record.EventRecorder, *wait.Backoff,
		*provision.ProvisionController) provision.VolumeStore = provision.NewBackoffStore
	_ func(kubernetes.Interface, workqueue.RateLimiter) provision.VolumeStore = provision.NewVolumeStoreQueue

	_ error = &provision.IgnoredError{Reason: ""}

	_ provision.Provisioner = interface {
		Provision(provision.VolumeOptions) (*corev1.PersistentVolume, error)
		Delete(*corev1.PersistentVolume) error
	}(nil)
	_ provision.ProvisionerExt = interface {
		ProvisionExt(provision.VolumeOptions) (*corev1.PersistentVolume, provision.ProvisioningState, error)
	}(nil)
	_ provision.Qualifier = interface {
		ShouldProvision(*corev1.PersistentVolumeClaim) bool
	}(nil)
	_ provision.DeletionGuard = interface {
		ShouldDelete(*corev1.PersistentVolume) bool
	}(nil)
	_ provision.BlockProvisioner = interface {
		provision.Provisioner
		SupportsBlock() bool
	}(nil)
	_ provision.VolumeStore = interface {
		StoreVolume(*corev1.PersistentVolumeClaim, *corev1.PersistentVolume) error
		Run(context.Context, int)
	}(nil)

	_ = provision.VolumeOptions{
		PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimPolicy(""),
		PVName:                        "",
		MountOptions:                  []string(nil),
		PVC:                           (*corev1.PersistentVolumeClaim)(nil),
		Parameters:                    map[string]string(nil),
		SelectedNode:                  (*corev1.Node)(nil),
		AllowedTopologies:             []corev1.TopologySelectorTerm(nil),
	}
)

func TestDefaultsAreThoseOfTheFirstVersion(t *testing.T) {
	require.Equal(t, 15*time.Minute, provision.DefaultResyncPeriod)
	require.Equal(t, 4, provision.DefaultThreadiness)
	require.True(t, provision.DefaultExponentialBackOffOnError)
	require.Equal(t, 5, provision.DefaultCreateProvisionedPVRetryCount)
	require.Equal(t, 10*time.Second, provision.DefaultCreateProvisionedPVInterval)
	require.Equal(t, 15, provision.DefaultFailedProvisionThreshold)
	require.Equal(t, 15, provision.DefaultFailedDeleteThreshold)
	require.Equal(t, 5*time.Minute, provision.DefaultInfeasibleRetryInterval)
	require.True(t, provision.DefaultLeaderElection)
	require.Equal(t, 15*time.Second, provision.DefaultLeaseDuration)
	require.Equal(t, 10*time.Second, provision.DefaultRenewDeadline)
	require.Equal(t, 2*time.Second, provision.DefaultRetryPeriod)
	require.Equal(t, 0, provision.DefaultMetricsPort)
	require.Equal(t, "0.0.0.0", provision.DefaultMetricsAddress)
	require.Equal(t, "/metrics", provision.DefaultMetricsPath)
	require.Equal(t, provision.ProvisioningState("Background"), provision.ProvisioningInBackground)
	require.Equal(t, provision.ProvisioningState("Finished"), provision.ProvisioningFinished)
	require.Equal(t, provision.ProvisioningState("NoChange"), provision.ProvisioningNoChange)
	require.Equal(t, "ignored because of x", (&provision.IgnoredError{Reason: "of x"}).Error())
}

func TestOptionsAreChecked(t *testing.T) {
	limiter := workqueue.DefaultTypedControllerRateLimiter[any]()
	for name, test := range map[string]struct {
		options []option
		wants   []string
	}{
		"limiter and backoff": {
			[]option{provision.CreateProvisionedPVLimiter(limiter), provision.CreateProvisionedPVBackoff(wait.Backoff{Steps: 1})},
			[]string{"CreateProvisionedPVLimiter", "CreateProvisionedPVBackoff"}},
		"limiter and interval": {
			[]option{provision.CreateProvisionedPVInterval(1), provision.CreateProvisionedPVLimiter(limiter)},
			[]string{"CreateProvisionedPVLimiter", "CreateProvisionedPVInterval"}},
		"backoff and count": {
			[]option{provision.CreateProvisionedPVBackoff(wait.Backoff{Steps: 1}), provision.CreateProvisionedPVRetryCount(1)},
			[]string{"CreateProvisionedPVBackoff", "CreateProvisionedPVRetryCount"}},
		"no threads":       {[]option{provision.Threadiness(0)}, []string{"Threadiness", "0"}},
		"negative resync":  {[]option{provision.ResyncPeriod(-1)}, []string{"ResyncPeriod"}},
		"negative retries": {[]option{provision.FailedProvisionThreshold(-1)}, []string{"FailedProvisionThreshold"}},
		"negative pause":   {[]option{provision.InfeasibleRetryInterval(-1)}, []string{"InfeasibleRetryInterval"}},
		"negative port":    {[]option{provision.MetricsPort(-1)}, []string{"MetricsPort"}},
		"port too high":    {[]option{provision.MetricsPort(65536)}, []string{"MetricsPort", "65535"}},
		"nil runnable":     {[]option{provision.WithRunnable(nil)}, []string{"WithRunnable"}},
		"pattern":          {[]option{provision.MetricsPath("/{all...")}, []string{"MetricsPath", "brace"}},
		"path":             {[]option{provision.MetricsPath("metrics")}, []string{"MetricsPath", "slash"}},
		"nil limiter":      {[]option{provision.RateLimiter(nil)}, []string{"RateLimiter"}},
		"nil informer":     {[]option{provision.ClaimsInformer(nil)}, []string{"ClaimsInformer"}},
		"short lease":      {[]option{provision.LeaseDuration(time.Second)}, []string{"LeaseDuration", "RenewDeadline"}},
		"long retry":       {[]option{provision.RetryPeriod(time.Minute)}, []string{"RenewDeadline", "RetryPeriod"}},
		"finalizer":        {[]option{provision.IntentFinalizer("no domain/at all/")}, []string{"IntentFinalizer"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := provision.New(fake.NewClientset(), driverName, &fakeProvisioner{}, test.options...)
			require.Error(t, err)
			for _, want := range test.wants {
				require.ErrorContains(t, err, want)
			}
			require.PanicsWithValue(t, err.Error(), func() {
				provision.NewProvisionController(fake.NewClientset(), driverName, &fakeProvisioner{}, "v1.36.3", test.options...)
			})
		})
	}
	_, err := provision.New(fake.NewClientset(), driverName, &fakeProvisioner{},
		provision.CreateProvisionedPVInterval(time.Second), provision.CreateProvisionedPVRetryCount(3))
	require.NoError(t, err, "interval and count go together")
}

func TestConstructorChecksItsArguments(t *testing.T) {
	client := fake.NewClientset()
	_, err := provision.New(nil, driverName, &fakeProvisioner{})
	require.ErrorContains(t, err, "client")
	_, err = provision.New(client, "", &fakeProvisioner{})
	require.ErrorContains(t, err, "name")
	_, err = provision.New(client, driverName, nil)
	require.ErrorContains(t, err, "provisioner is nil")
	require.Panics(t, func() { provision.NewProvisionController(client, driverName, &fakeProvisioner{}, "one.thirty-six") })
	c := provision.NewProvisionController(client, driverName, &fakeProvisioner{}, "v1.36.3")
	require.False(t, c.HasRun())
}
