package nodeselect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/reconcile"
)

const (
	// DefaultBaseDelay and DefaultMaxDelay are the defaults of Config, those of external-provisioner.
	DefaultBaseDelay, DefaultMaxDelay = 20 * time.Second, time.Minute

	// apiRetryMin and apiRetryMax bound the backoff of failed API calls.
	apiRetryMin, apiRetryMax = time.Second, time.Minute
)

// annProvisioners are the annotations of a claim with the provisioner that is to create its volume: the one that Kubernetes writes, and
// the one that it wrote before 1.23.
var annProvisioners = []string{volumehelpers.AnnStorageProvisioner, volumehelpers.AnnBetaStorageProvisioner}

// Driver says what the driver of this node has space for. It is safe for concurrent use.
type Driver interface {
	// Capacity returns how many bytes of volumes with these StorageClass parameters can still be created, and the size of the largest
	// volume, nil if that is unknown. The error is errors.ErrUnsupported if the driver does not report its capacity.
	Capacity(ctx context.Context, parameters, topology map[string]string) (available int64, largest *int64, err error)
}

// Deps are what a Selector works with. Client and Driver are required; the others have the usual defaults.
type Deps struct {
	// Client gets and patches PersistentVolumeClaims, and gets StorageClasses and Nodes.
	Client kubernetes.Interface
	Driver Driver
	Logger *slog.Logger
	Clock  clock.WithTicker
	// Random returns a random duration of at most the given one. Default: an even distribution.
	Random func(most time.Duration) time.Duration
}

// Config is how a Selector works. DriverName and NodeName are required.
type Config struct {
	// DriverName is the provisioner of the claims, NodeName the node that is selected.
	DriverName, NodeName string
	// BaseDelay bounds the random time before the first try of a claim. The bound doubles with each further one, up to MaxDelay.
	BaseDelay, MaxDelay time.Duration
}

func (c *Config) complete() error {
	if c.BaseDelay == 0 {
		c.BaseDelay = DefaultBaseDelay
	}
	if c.MaxDelay == 0 {
		c.MaxDelay = max(DefaultMaxDelay, c.BaseDelay)
	}
	switch {
	case c.DriverName == "" || c.NodeName == "":
		return errors.New("nodeselect: Config.DriverName and Config.NodeName are required")
	case c.BaseDelay < 0 || c.MaxDelay < c.BaseDelay:
		return fmt.Errorf("nodeselect: Config.BaseDelay %v is negative, or more than Config.MaxDelay %v", c.BaseDelay, c.MaxDelay)
	}
	return nil
}

// Selector selects this node for claims that no node is selected for. Start runs it, once.
type Selector struct {
	deps   Deps
	config Config
	runner *controller.Controller

	mu sync.Mutex // guards claims
	// claims are those that wait for their next try, or whose volume may yet fail.
	claims map[reconcile.Request]*tries
}

// tries are those of one claim.
type tries struct {
	uid types.UID
	// done is how many there were; pending says that another one is to come.
	done    int
	pending bool
}

// New returns a Selector. It starts nothing.
func New(deps Deps, config Config) (*Selector, error) {
	if deps.Client == nil || deps.Driver == nil {
		return nil, errors.New("nodeselect: Deps.Client and Deps.Driver are required")
	}
	if err := config.complete(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Random == nil {
		deps.Random = func(most time.Duration) time.Duration { return rand.N(most + 1) }
	}
	s := &Selector{deps: deps, config: config, claims: map[reconcile.Request]*tries{}}
	var err error
	s.runner, err = controller.New(reconcile.Func(s.reconcile), controller.Deps{Logger: deps.Logger, Clock: deps.Clock},
		controller.Config{Name: "node selector of " + config.DriverName, Workers: 1, BackoffMin: apiRetryMin, BackoffMax: apiRetryMax})
	return s, err
}

// Start selects until ctx ends.
func (s *Selector) Start(ctx context.Context) error { return s.runner.Start(ctx) }

// RetryNow retries at once what failed, because the driver is back.
func (s *Selector) RetryNow() { s.runner.RetryFailed() }

// Ready returns nil while the Selector works.
func (s *Selector) Ready() error { return s.runner.Ready() }

// Healthy returns an error while a worker is stuck.
func (s *Selector) Healthy() error { return s.runner.Healthy() }

// Consider tries to select this node for the claim, after a delay. A claim that needs no node, or waits for its try already, is ignored. It
// does not block, and is safe for concurrent use.
func (s *Selector) Consider(claim *corev1.PersistentVolumeClaim) {
	if !s.needsNode(claim) {
		return
	}
	key := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}}
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.claims[key]
	if have == nil || have.uid != claim.UID {
		have = &tries{uid: claim.UID}
		s.claims[key] = have
	}
	if have.pending {
		return
	}
	have.pending = true
	s.runner.EnqueueAfter(key, s.delay(have.done))
}

// delay returns the random time before the next try.
func (s *Selector) delay(done int) time.Duration {
	return s.deps.Random(min(s.config.BaseDelay<<min(done, 16), s.config.MaxDelay))
}

func (s *Selector) needsNode(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil && claim.Annotations[volumehelpers.AnnSelectedNode] == "" &&
		claim.Spec.StorageClassName != nil && slices.ContainsFunc(annProvisioners, func(name string) bool {
		return claim.Annotations[name] == s.config.DriverName
	})
}

// reconcile makes one try.
func (s *Selector) reconcile(ctx context.Context, key reconcile.Request) (reconcile.Result, error) {
	claim, err := s.deps.Client.CoreV1().PersistentVolumeClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return reconcile.Result{}, fmt.Errorf("select node %q for claim %s: %w", s.config.NodeName, key, err)
	}
	if err != nil || !s.needsNode(claim) {
		s.forget(key)
		return reconcile.Result{}, nil
	}
	class, err := s.deps.Client.StorageV1().StorageClasses().Get(ctx, *claim.Spec.StorageClassName, metav1.GetOptions{})
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("select node %q for claim %s: %w", s.config.NodeName, key, err)
	}
	if class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer {
		s.forget(key) // the scheduler selects its node
		return reconcile.Result{}, nil
	}
	reason, err := s.reasonAgainst(ctx, claim, class)
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("select node %q for claim %s: %w", s.config.NodeName, key, err)
	}
	if reason != "" {
		wait := s.tried(key, claim.UID, true)
		s.deps.Logger.Info("claim has no place on this node", "claim", key.String(), "node", s.config.NodeName, "reason", reason, "again", wait)
		return reconcile.Result{RequeueAfter: wait}, nil
	}
	// If the driver fails, the claim comes back without a node, which may be before the write has returned. If not, it is forgotten then.
	wait := s.tried(key, claim.UID, false)
	if err := s.selectNode(ctx, claim); err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: wait}, nil
}

// tried counts a try, and returns how long to wait until the claim is read again. pending says that this is the next try.
func (s *Selector) tried(key reconcile.Request, uid types.UID, pending bool) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.claims[key]
	if have == nil || have.uid != uid {
		have = &tries{uid: uid}
		s.claims[key] = have
	}
	have.done++
	have.pending = pending
	if !pending {
		return s.config.MaxDelay
	}
	return s.delay(have.done)
}

func (s *Selector) forget(key reconcile.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.claims, key)
}

// reasonAgainst returns why the volume cannot be on this node, empty if it can.
func (s *Selector) reasonAgainst(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (string, error) {
	node, err := s.deps.Client.CoreV1().Nodes().Get(ctx, s.config.NodeName, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	if !isAllowed(class.AllowedTopologies, node.Labels) {
		return "the StorageClass does not allow the node's topology", nil
	}
	size := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	available, largest, err := s.deps.Driver.Capacity(ctx, class.Parameters, nil)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return "", nil
	case err != nil:
		return "", err
	case size.Value() > available:
		return fmt.Sprintf("%d bytes are requested, %d are available", size.Value(), available), nil
	case largest != nil && size.Value() > *largest:
		return fmt.Sprintf("%d bytes are requested, the largest volume that fits has %d", size.Value(), *largest), nil
	}
	return "", nil
}

// isAllowed reports whether a node with these labels is in one of the topologies; no topology allows all.
func isAllowed(terms []corev1.TopologySelectorTerm, labels map[string]string) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(term corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			value, ok := labels[e.Key]
			return !ok || !slices.Contains(e.Values, value)
		})
	})
}

// selectNode writes the node into the claim, unless the claim has changed since it was read: then another node may have been selected.
func (s *Selector) selectNode(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion, "annotations": map[string]string{volumehelpers.AnnSelectedNode: s.config.NodeName},
	}})
	if err == nil {
		_, err = s.deps.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil // it is looked at again
	case err != nil:
		return fmt.Errorf("select node %q for claim %s/%s: %w", s.config.NodeName, claim.Namespace, claim.Name, err)
	}
	s.deps.Logger.Info("selected this node for a claim", "claim", claim.Namespace+"/"+claim.Name, "node", s.config.NodeName)
	return nil
}
