package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// Reasons of an Error, as they appear in status.state.waiting.
const (
	ReasonPull         = "ErrImagePull"
	ReasonBackOff      = "ImagePullBackOff"
	ReasonNeverPull    = "ErrImageNeverPull"
	ReasonInvalidName  = "InvalidImageName"
	ReasonInspect      = "ImageInspectError"
	ReasonUnavailable  = "RegistryUnavailable"
	ReasonBadSignature = "SignatureValidationFailed"
	firstDelay         = 10 * time.Second
	maxDelay           = 5 * time.Minute
	forgetAfter        = 2 * maxDelay // since the last failure, as for containers that crash
	eventPulling       = "Pulling"
	eventPulled        = "Pulled"
	eventFailed        = "Failed"
	eventBackOff       = "BackOff"
	eventInspectFailed = "InspectFailed"
	eventNeverPull     = "ErrImageNeverPull"
	eventNoSecret      = "FailedToRetrieveImagePullSecret"
	defaultPullBurst   = 10
)

// DefaultParallel is the default of Config.MaxParallel.
const DefaultParallel = 4

// Service is the part of the CRI's image service that a Manager uses.
type Service interface {
	ImageStatus(ctx context.Context, in *runtimeapi.ImageStatusRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ImageStatusResponse, error)
	PullImage(ctx context.Context, in *runtimeapi.PullImageRequest, opts ...grpc.CallOption,
	) (*runtimeapi.PullImageResponse, error)
}

// errTooManyPulls is the error of a pull that was not started because of the rate limit.
var errTooManyPulls = errors.New("pull QPS exceeded")

// Credential is a login for an image, and its source.
type Credential struct {
	// Auth is nil for an anonymous pull.
	Auth   *runtimeapi.AuthConfig
	Source pullrecords.Source
}

// Keyring returns the credentials to try for an image, best first. Without any the pull is anonymous. Pull Secrets and
// credential providers are Keyrings.
type Keyring interface {
	Credentials(ctx context.Context, pod *corev1.Pod, image string) ([]Credential, error)
}

// Config are the values of a Manager.
type Config struct {
	// MaxParallel is the number of pulls that run at the same time; 4 if zero.
	MaxParallel int
	// PullQPS limits the pulls that start per second in the long run, and PullBurst those that start at once; a PullQPS
	// of zero means no limit, a PullBurst of zero means 10. A pull beyond the limit fails and is retried after its
	// backoff.
	PullQPS   float32
	PullBurst int
}

// Deps are what a Manager works with. Service is required.
type Deps struct {
	Service Service
	// Keyring may be nil: all pulls are anonymous then.
	Keyring Keyring
	// PullRecords, if set, denies Pods the images that others have pulled with credentials that they do not have.
	PullRecords *pullrecords.Manager
	// Recorder records the Pods' events; it may be nil.
	Recorder record.EventRecorder
	// OnPulled, if set, is called after each pull, so that the node's list of images can be updated.
	OnPulled func()
	// ObservePull, if set, is called after each successful pull with the image's size in bytes and the duration, in which the pull's wait
	// for others counts.
	ObservePull func(size uint64, took time.Duration)
	// CountRequest, if set, is called after each Ensure with the policy and with what Ensure has found out: whether the image was
	// present, and whether it had to be pulled. A nil is not known: Ensure ended before, or does not look because the policy is Always.
	CountRequest func(policy corev1.PullPolicy, present, pullRequired *bool)
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.Clock
}

// Error says why an image is not present.
type Error struct {
	// Reason is one of the Reason constants.
	Reason string
	// Message is for the user. Remedy, if not empty, says how to fix the problem.
	Message, Remedy string
	// RetryAt is when a later Ensure retries; before that it returns ImagePullBackOff.
	RetryAt time.Time
	// Err is the cause, or nil.
	Err error
}

// Error returns the reason and the message.
func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// PullRequest is a request for the image of one container.
type PullRequest struct {
	Pod *corev1.Pod
	// Ref is the object of events: the Pod with the container's field path.
	Ref *corev1.ObjectReference
	// Image and Policy are the container's; an empty policy means IfNotPresent.
	Image  string
	Policy corev1.PullPolicy
	// RuntimeHandler is the handler of the Pod's RuntimeClass, empty for the default.
	RuntimeHandler string
	// Sandbox is passed to the runtime with the pull; it may be nil.
	Sandbox *runtimeapi.PodSandboxConfig
	// Slow is called before Ensure does more than ask the runtime, at most once: before it reads credentials and pulls the image. It
	// may be nil.
	Slow func()
}

// Manager pulls images. It is safe for concurrent use.
type Manager struct {
	deps      Deps
	slots     chan struct{}
	rateLimit flowcontrol.PassiveRateLimiter // nil if there is no limit

	mu       sync.Mutex // guards backoffs
	backoffs map[backoffKey]backoff
}

// backoffKey identifies a backoff.
type backoffKey struct {
	uid   types.UID
	image string
}

// backoff is the state of the retries of one Pod's image.
type backoff struct {
	delay     time.Duration
	failed    time.Time // of the last failure
	until     time.Time
	lastError string // message of the last failure
}

// New returns a Manager.
func New(deps Deps, config Config) (*Manager, error) {
	if deps.Service == nil {
		return nil, errors.New("images: Deps.Service is required")
	}
	if config.MaxParallel <= 0 {
		config.MaxParallel = DefaultParallel
	}
	if deps.Recorder == nil {
		deps.Recorder = &record.FakeRecorder{}
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Clock == nil {
		deps.Clock = clock.RealClock{}
	}
	if deps.CountRequest == nil {
		deps.CountRequest = func(corev1.PullPolicy, *bool, *bool) {}
	}
	m := &Manager{deps: deps, slots: make(chan struct{}, config.MaxParallel), backoffs: map[backoffKey]backoff{}}
	if config.PullQPS > 0 {
		if config.PullBurst <= 0 {
			config.PullBurst = defaultPullBurst
		}
		m.rateLimit = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(config.PullQPS, config.PullBurst, deps.Clock)
	}
	return m, nil
}

// Ensure makes the image present according to the policy and returns the runtime's description of it. The error is an
// *Error unless ctx ended. Ensure does not retry: the caller calls it again at the error's RetryAt.
func (m *Manager) Ensure(ctx context.Context, request PullRequest) (*runtimeapi.Image, error) {
	var found lookup
	image, err := m.ensure(ctx, request, &found)
	m.deps.CountRequest(cmp.Or(request.Policy, corev1.PullIfNotPresent), found.present, found.pullRequired)
	return image, err
}

// lookup is what Ensure finds out about an image: the arguments of Deps.CountRequest.
type lookup struct{ present, pullRequired *bool }

func (m *Manager) ensure(ctx context.Context, request PullRequest, found *lookup) (*runtimeapi.Image, error) {
	if _, err := reference.ParseNormalizedNamed(request.Image); err != nil { // an ID has the form of a name with a tag
		return nil, m.fail(request, &Error{
			Reason: ReasonInvalidName, Err: err, Remedy: "correct the image's name in the pod's template",
			Message: fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v",
				request.Image, request.Image, err),
		}, eventInspectFailed)
	}
	spec := &runtimeapi.ImageSpec{
		Image: withDefaultTag(request.Image), Annotations: request.Pod.Annotations, RuntimeHandler: request.RuntimeHandler,
	}
	podCredentials := sync.OnceValue(func() []Credential {
		if request.Slow != nil {
			request.Slow()
		}
		return m.credentials(ctx, request)
	})
	if request.Policy == corev1.PullAlways {
		found.pullRequired = ptr.To(true)
		return m.pull(ctx, request, spec, podCredentials)
	}
	present, err := m.inspect(ctx, spec)
	if err == nil {
		found.present = ptr.To(present != nil)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, m.fail(request, &Error{
			Reason: ReasonInspect, Err: err,
			Message: fmt.Sprintf("Failed to inspect image %q: %s", request.Image, errorText(err)),
		}, eventInspectFailed)
	case present != nil && m.allowed(request, present, podCredentials):
		found.pullRequired = ptr.To(false)
		m.forget(backoffKey{request.Pod.UID, request.Image})
		m.event(request, corev1.EventTypeNormal, eventPulled,
			fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", request.Image))
		return present, nil
	case request.Policy == corev1.PullNever:
		if present != nil {
			found.pullRequired = ptr.To(true) // it would verify the Pod's credentials
		}
		// The message is the same for a Pod that may not use the image: it must not learn that the image exists.
		return nil, m.fail(request, &Error{
			Remedy: "import the image on the node (`berth images import`), allow pulling it (imagePullPolicy), or, if it was " +
				"pulled with a login, give the pod that login (imagePullSecrets)",
			Reason:  ReasonNeverPull,
			Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", request.Image),
		}, eventNeverPull)
	}
	found.pullRequired = ptr.To(true)
	return m.pull(ctx, request, spec, podCredentials)
}

// Forget removes the backoffs of a Pod.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.backoffs {
		if k.uid == uid {
			delete(m.backoffs, k)
		}
	}
}

// fail records the event of an error and returns the error.
func (m *Manager) fail(request PullRequest, err *Error, event string) error {
	message := err.Message
	if event == eventFailed {
		message = "Error: " + err.Reason
	}
	m.event(request, corev1.EventTypeWarning, event, message)
	if err.RetryAt.IsZero() {
		err.RetryAt = m.deps.Clock.Now().Add(firstDelay)
	}
	return err
}

func (m *Manager) event(request PullRequest, kind, reason, message string) {
	m.deps.Recorder.Event(request.Ref, kind, reason, message)
}

func (m *Manager) forget(k backoffKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.backoffs, k)
}

// inspect returns the image, or nil if the runtime does not have it.
func (m *Manager) inspect(ctx context.Context, spec *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	resp, err := m.deps.Service.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if status.Code(err) == codes.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("inspect image %q: %w", spec.Image, err)
	}
	return resp.Image, nil
}

// withDefaultTag appends the default tag to a name without tag and digest.
func withDefaultTag(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil || !reference.IsNameOnly(named) {
		return image
	}
	return image + ":latest"
}

// errorText returns the message of an error without gRPC's prefix, and of several errors, as of a pull with several logins, each
// different one.
func errorText(err error) string {
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		var texts []string
		for _, each := range several.Unwrap() {
			if text := errorText(each); !slices.Contains(texts, text) {
				texts = append(texts, text)
			}
		}
		if len(texts) == 1 {
			return texts[0]
		}
		return "[" + strings.Join(texts, ", ") + "]"
	}
	if s, ok := status.FromError(errors.Unwrap(err)); ok && s.Code() != codes.OK {
		return s.Message()
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
