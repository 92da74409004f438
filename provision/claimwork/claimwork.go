package claimwork

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/client"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/internal/contain"
	"github.com/berth-dev/berth/internal/expansion"
	"github.com/berth-dev/berth/provision/claimretry"
	"github.com/berth-dev/berth/provision/lifecycle"
	"github.com/berth-dev/berth/reconcile"
	"github.com/berth-dev/berth/timeline"
)

const (
	// DefaultWorkers is how many volumes are changed at once.
	DefaultWorkers = 10

	// claimKind is the kind of a claim in timelines.
	claimKind = "PersistentVolumeClaim"

	// apiRetryMin and apiRetryMax bound the backoff of failed API writes.
	apiRetryMin, apiRetryMax = 100 * time.Millisecond, time.Minute
)

// ErrStale is the error for a claim that has changed since it was read. The watch brings it back.
var ErrStale = errors.New("the claim has changed meanwhile")

// IgnoreStale drops ErrStale.
func IgnoreStale(err error) error {
	if errors.Is(err, ErrStale) {
		return nil
	}
	return err
}

// Deps are what a Controller works with. Client is required; the others have the usual defaults.
type Deps struct {
	// Client watches claims, patches them and their status, gets and patches PersistentVolumes, and writes events.
	Client kubernetes.Interface
	// Informers watches claims. Those of NewInformers are the default; controllers of one driver share them.
	Informers informers.SharedInformerFactory
	// Timeline records each try as a stage of the claim. It may be nil.
	Timeline *timeline.Recorder
	// Recorder records events. The default is a recorder that writes to the API server.
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker
	// Registerer registers the metrics while the controller runs. Nil: there are none.
	Registerer prometheus.Registerer
}

// Config is how a Controller works. All but Workers are required.
type Config struct {
	// DriverName is the name of the driver whose volumes are changed.
	DriverName string
	// Workers is how many volumes are changed at once. Default DefaultWorkers.
	Workers int
	// Owner is the owner of the stages in timelines, and begins the controller's name and the source of its events.
	Owner string
	// Work is what is done, for errors: "expansion".
	Work string
	// EventFailed is the reason of events about a try that failed.
	EventFailed string
	// CallDurations is the name of the metric of the driver's calls, Help its help.
	CallDurations, Help string
	// NeedsWork reports whether there is something to do for a claim. It is called for each change of each claim.
	NeedsWork func(claim *corev1.PersistentVolumeClaim) bool
	// Watch runs beside the workers: it may watch what claims wait for.
	Watch func(ctx context.Context)
}

type claims = client.Resource[*corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaimList,
	typedcorev1.PersistentVolumeClaimInterface]

// Controller changes the volumes of one driver. Start runs it, once: it returns when no call of the driver runs any more. The
// next process continues what is unfinished then.
type Controller struct {
	*lifecycle.Lifecycle
	// Deps and Config are those of New, with their defaults.
	Deps   Deps
	Config Config
	// Claims reads and writes claims; Retries has the delays of those that failed.
	Claims    *claims
	Retries   *claimretry.Delays
	runner    *controller.Controller
	durations *prometheus.HistogramVec
}

// New returns a Controller that calls reconcile for claims. It starts nothing.
func New(deps Deps, config Config, reconcile reconcile.Func) (*Controller, error) {
	if deps.Client == nil {
		return nil, errors.New("Deps.Client is required")
	}
	if config.DriverName == "" {
		return nil, errors.New("Config.DriverName is required")
	}
	if config.Workers <= 0 {
		config.Workers = DefaultWorkers
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	deps.Logger = deps.Logger.With("driver", config.DriverName)
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.Informers == nil {
		deps.Informers = NewInformers(deps.Client)
	}
	c := &Controller{Deps: deps, Config: config, Retries: claimretry.New(deps.Clock),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "controller", Name: config.CallDurations, Help: config.Help,
			ConstLabels: prometheus.Labels{"driver": config.DriverName}, Buckets: prometheus.DefBuckets,
		}, []string{"outcome"})}
	return c, c.build(reconcile)
}

func (c *Controller) build(reconcile reconcile.Func) error {
	informer := c.Deps.Informers.Core().V1().PersistentVolumeClaims().Informer()
	var err error
	c.Claims, err = client.New(c.Deps.Client.CoreV1().PersistentVolumeClaims, informer,
		client.Config[*corev1.PersistentVolumeClaim]{Resource: corev1.Resource("persistentvolumeclaims")})
	if err != nil {
		return err
	}
	name := c.Config.Owner + " of " + c.Config.DriverName
	c.runner, err = controller.New(reconcile, controller.Deps{
		Logger: c.Deps.Logger, Clock: c.Deps.Clock, Registerer: c.Deps.Registerer,
	}, controller.Config{Name: name, Workers: c.Config.Workers, BackoffMin: apiRetryMin, BackoffMax: apiRetryMax})
	if err != nil {
		return err
	}
	c.runner.Watch(controller.For(informer, controller.Changed(), func(e controller.Event) bool {
		claim, ok := e.Object.(*corev1.PersistentVolumeClaim)
		return ok && c.Config.NeedsWork(claim)
	}))
	c.Lifecycle, err = lifecycle.New(lifecycle.Deps{
		Client: c.Deps.Client, Recorder: c.Deps.Recorder, Logger: c.Deps.Logger, Clock: c.Deps.Clock,
		Registerer: c.Deps.Registerer, Runner: c.runner,
	}, lifecycle.Config{Name: name, EventSource: c.Config.Owner + " " + c.Config.DriverName, Begin: c.begin, Collector: c.durations})
	return err
}

// begin starts the informers and Config.Watch.
func (c *Controller) begin(ctx context.Context) (end func()) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		contain.Loop(ctx, "claimwork.watch", c.Config.Owner, c.Config.Watch)()
	}()
	c.Deps.Informers.StartWithContext(ctx)
	return func() {
		c.Deps.Informers.Shutdown()
		<-ended
	}
}

// RetryNow retries all that wait for their delay at once, because the driver is back.
func (c *Controller) RetryNow() {
	c.runner.Enqueue(c.Retries.ForgetAll()...)
	c.runner.RetryFailed()
}

// Retry retries claims at once.
func (c *Controller) Retry(keys ...reconcile.Request) {
	for _, key := range keys {
		c.Retries.Forget(key)
	}
	c.runner.Enqueue(keys...)
}

// VolumeOf gets the claim's volume; nil if it is not the driver's, or not the claim's. One that is being deleted exists until its
// claim does not.
func (c *Controller) VolumeOf(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	pv, err := c.Deps.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil // then the claim is lost
	case err != nil:
		return nil, fmt.Errorf("%s of claim %s/%s: get its volume: %w", c.Config.Work, claim.Namespace, claim.Name, err)
	case pv.Spec.CSI == nil || pv.Spec.CSI.Driver != c.Config.DriverName:
		return nil, nil
	case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
		return nil, nil
	}
	return pv, nil
}

// Try is one attempt for a claim.
type Try struct {
	Claim  *corev1.PersistentVolumeClaim
	Volume *corev1.PersistentVolume
	// Stage is the stage in the claim's timeline, Want what is wanted: another one ends the delay after a failure. Detail is
	// Want for humans.
	Stage, Want, Detail string
	// Do makes the attempt. Its error is ErrStale, a Failure, or one of the API.
	Do func(ctx context.Context) error
	// MarkFailed writes a Failure into the claim's status.
	MarkFailed func(ctx context.Context, failure *Failure) error
}

// Attempt makes an attempt and records its result. After a failure it returns when to try again.
func (c *Controller) Attempt(ctx context.Context, key reconcile.Request, try Try) (done bool, result reconcile.Result, err error) {
	span := c.Deps.Timeline.Begin(timeline.RefOf(claimKind, try.Claim), c.Config.Owner, try.Stage, try.Detail)
	span.AddWait(controller.QueueWait(ctx))
	err = try.Do(span.Context(ctx))
	span.End(err)
	var failure *Failure
	switch {
	case err == nil:
		return true, reconcile.Result{}, nil
	case errors.Is(err, ErrStale):
		return false, reconcile.Result{}, nil
	case ctx.Err() != nil, !errors.As(err, &failure):
		return false, reconcile.Result{}, err
	}
	wait := c.Retries.Failed(key, try.Claim, try.Want, failure.Slow)
	c.Deps.Logger.Warn("failed to change a volume; retrying", "work", c.Config.Work, "claim", key.String(), "volume", try.Volume.Name,
		"want", try.Detail, "after", wait, "error", err)
	c.Recorder().Event(try.Claim, corev1.EventTypeWarning, c.Config.EventFailed, err.Error())
	if err := try.MarkFailed(ctx, failure); IgnoreStale(err) != nil {
		return false, reconcile.Result{}, err
	}
	return false, reconcile.Result{RequeueAfter: wait}, nil
}

// Observe measures a call of the driver that began at start. outcome is that of err, if there is one.
func (c *Controller) Observe(start time.Time, err error, outcome Outcome) {
	label := "success"
	if err != nil {
		label = outcome.String()
	}
	c.durations.WithLabelValues(label).Observe(c.Deps.Clock.Since(start).Seconds())
}

// PatchStatus patches the claim's status. It returns ErrStale if the claim has changed since it was read.
func (c *Controller) PatchStatus(ctx context.Context, claim *corev1.PersistentVolumeClaim, status map[string]any,
) (*corev1.PersistentVolumeClaim, error) {
	return c.patch(ctx, claim, map[string]any{}, map[string]any{"status": status}, "status")
}

// PatchMetadata patches the claim's metadata. It returns ErrStale if the claim has changed since it was read.
func (c *Controller) PatchMetadata(ctx context.Context, claim *corev1.PersistentVolumeClaim, metadata map[string]any,
) (*corev1.PersistentVolumeClaim, error) {
	return c.patch(ctx, claim, metadata, map[string]any{})
}

func (c *Controller) patch(ctx context.Context, claim *corev1.PersistentVolumeClaim, metadata, content map[string]any, part ...string,
) (*corev1.PersistentVolumeClaim, error) {
	metadata["uid"], metadata["resourceVersion"] = claim.UID, claim.ResourceVersion
	content["metadata"] = metadata
	data, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("record %s of claim %s/%s: %w", c.Config.Work, claim.Namespace, claim.Name, err)
	}
	written, err := c.Claims.Patch(ctx, claim.Namespace, claim.Name,
		client.Patch{Type: types.MergePatchType, Data: data}, metav1.PatchOptions{}, part...)
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, ErrStale
	case err != nil:
		return nil, fmt.Errorf("record %s of claim %s/%s: %w", c.Config.Work, claim.Namespace, claim.Name, err)
	}
	return written, nil
}

// PatchVolume changes a PersistentVolume. The patch names the volume's UID.
func (c *Controller) PatchVolume(ctx context.Context, pv *corev1.PersistentVolume, metadata, spec map[string]any) error {
	content := map[string]any{}
	if spec != nil {
		content["spec"] = spec
	}
	metadata["uid"] = pv.UID
	content["metadata"] = metadata
	data, err := json.Marshal(content)
	if err == nil {
		_, err = c.Deps.Client.CoreV1().PersistentVolumes().Patch(ctx, pv.Name, types.MergePatchType, data, metav1.PatchOptions{})
	}
	if err != nil {
		return fmt.Errorf("record %s of volume %q: %w", c.Config.Work, pv.Name, err)
	}
	return nil
}

// WithCondition adds a condition of the claim that is true, with the time of its last transition.
func (c *Controller) WithCondition(conditions []corev1.PersistentVolumeClaimCondition, claim *corev1.PersistentVolumeClaim,
	kind corev1.PersistentVolumeClaimConditionType, message string,
) []corev1.PersistentVolumeClaimCondition {
	since := metav1.NewTime(c.Deps.Clock.Now())
	if before := expansion.TrueCondition(claim, kind); before != nil {
		since = before.LastTransitionTime
	}
	return append(conditions, corev1.PersistentVolumeClaimCondition{
		Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: since, Message: message})
}

// NewInformers returns informers that keep of a claim what its expansion and its modification need.
func NewInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trimClaim))
}

// trimClaim removes the parts of a claim that are not needed, because there may be very many claims.
func trimClaim(obj any) (any, error) {
	claim, ok := obj.(*corev1.PersistentVolumeClaim)
	if !ok {
		return obj, nil
	}
	claim.ObjectMeta = metav1.ObjectMeta{
		Name: claim.Name, Namespace: claim.Namespace, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
		DeletionTimestamp: claim.DeletionTimestamp, Annotations: trimAnnotations(claim.Annotations),
	}
	return claim, nil
}

// trimAnnotations keeps the annotation that an expansion reads, nil if there is none.
func trimAnnotations(annotations map[string]string) map[string]string {
	value, ok := annotations[expansion.AnnotationNodeExpansionNotRequired]
	if !ok {
		return nil
	}
	return map[string]string{expansion.AnnotationNodeExpansionNotRequired: value}
}
