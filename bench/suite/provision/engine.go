package provision

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	library "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/berth-dev/berth/bench/harness"
	"github.com/berth-dev/berth/provision"
)

// engine runs a provisioner of this name until ctx ends.
type engine func(ctx context.Context, client kubernetes.Interface, name string) error

func runBerth(ctx context.Context, client kubernetes.Interface, name string) error {
	ctrl, err := provision.New(client, name, instant{}, provision.LeaderElection(false))
	if err != nil {
		return err
	}
	return ctrl.RunContext(ctx)
}

// runLibrary runs the library with so many workers; 0 is its default.
func runLibrary(workers int) engine {
	return func(ctx context.Context, client kubernetes.Interface, name string) error {
		options := []func(*library.ProvisionController) error{library.LeaderElection(false)}
		if workers > 0 {
			options = append(options, library.Threadiness(workers))
		}
		library.NewProvisionController(ctx, client, name, libraryInstant{}, options...).Run(ctx)
		return nil
	}
}

// volume describes a volume that needs no work.
func volume(name string, policy corev1.PersistentVolumeReclaimPolicy, claim *corev1.PersistentVolumeClaim,
) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: policy,
			AccessModes:                   claim.Spec.AccessModes,
			Capacity:                      claim.Spec.Resources.Requests,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/var/empty/" + name},
			},
		},
	}
}

// instant is a Provisioner of Berth's that has nothing to do.
type instant struct{}

// Provision implements provision.Provisioner.
func (instant) Provision(o provision.VolumeOptions) (*corev1.PersistentVolume, error) {
	return volume(o.PVName, o.PersistentVolumeReclaimPolicy, o.PVC), nil
}

// Delete implements provision.Provisioner.
func (instant) Delete(*corev1.PersistentVolume) error { return nil }

// libraryInstant is the same for the library.
type libraryInstant struct{}

// Provision implements library.Provisioner.
func (libraryInstant) Provision(_ context.Context, o library.ProvisionOptions,
) (*corev1.PersistentVolume, library.ProvisioningState, error) {
	return volume(o.PVName, *o.StorageClass.ReclaimPolicy, o.PVC), library.ProvisioningFinished, nil
}

// Delete implements library.Provisioner.
func (libraryInstant) Delete(context.Context, *corev1.PersistentVolume) error { return nil }

// writes counts the requests of a client that change something, and apart from them those that would have, which the API
// server refused: after a conflict nothing is written.
type writes struct {
	atomic.Int64
	refused atomic.Int64
}

func (w *writes) reset() { w.Store(0); w.refused.Store(0) }

// client connects like config, counting. A limited one has client-go's own limit.
func (w *writes) client(config *rest.Config, limited bool) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	if limited {
		config.QPS, config.Burst = 0, 0 // the defaults
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(r)
			switch {
			case r.Method == http.MethodGet:
			case err == nil && response.StatusCode >= http.StatusBadRequest:
				w.refused.Add(1)
			default: // without an answer it may have been written
				w.Add(1)
			}
			return response, err
		})
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// quietTime is how long nothing is written until what was to be written has been.
const quietTime = 2 * time.Second

// waitQuiet returns when nothing has been written for quietTime.
func (w *writes) waitQuiet(ctx context.Context) error {
	const look = quietTime / 40
	seen, quiet := w.Load(), time.Duration(0)
	for quiet < quietTime {
		if err := harness.Pause(ctx, look); err != nil {
			return fmt.Errorf("wait for the last write: %w", err)
		}
		quiet += look
		if now := w.Load(); now != seen {
			seen, quiet = now, 0
		}
	}
	return nil
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
