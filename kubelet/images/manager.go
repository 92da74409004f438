package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

	"github.com/berth-dev/berth/kubelet/images/pullrecords"
)

// Reasons of an Error, as they stand in status.state.waiting.
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
	eventPulling       = "Pulling"
	eventPulled        = "Pulled"
	eventFailed        = "Failed"
	eventBackOff       = "BackOff"
	eventInspectFailed = "InspectFailed"
	eventNeverPull     = "ErrImageNeverPull"
	eventNoSecret      = "FailedToRetrieveImagePullSecret"
	defaultPullBurst   = 10
)

// DefaultParallel is how many images are pulled at once if nobody says.
const DefaultParallel = 4

// Service is what is needed of the CRI's image service.
type Service interface {
	ImageStatus(ctx context.Context, in *runtimeapi.ImageStatusRequest, opts ...grpc.CallOption,
	) (*runtimeapi.ImageStatusResponse, error)
	PullImage(ctx context.Context, in *runtimeapi.PullImageRequest, opts ...grpc.CallOption,
	) (*runtimeapi.PullImageResponse, error)
}

// errTooManyPulls is a pull that was not begun because too many were.
var errTooManyPulls = errors.New("pull QPS exceeded")

// Credential is a login for an image, and where it comes from.
type Credential struct {
	// Auth is nil for a pull without any.
	Auth   *runtimeapi.AuthConfig
	Source pullrecords.Source
}

// Keyring finds the credentials to try for an image, best first. None means an anonymous pull. It is where pull
// secrets and credential providers come in.
type Keyring interface {
	Credentials(ctx context.Context, pod *corev1.Pod, image string) ([]Credential, error)
}

// Config are the values a Manager works with.
type Config struct {
	// MaxParallel is how many pulls run at once; 4 if zero.
	MaxParallel int
	// PullQPS is how many pulls may begin in a second, in the long run, and PullBurst how many at once; a PullQPS of
	// zero sets no bounds, and a PullBurst of zero means 10. What is beyond fails, and is tried again after its backoff.
	PullQPS   float32
	PullBurst int
}

// Deps are what a Manager needs from others.
type Deps struct {
	Service Service
	// Keyring may be nil: all pulls are anonymous then.
	Keyring Keyring
	// PullRecords, if set, keeps Pods from images that others have pulled with credentials they do not have.
	PullRecords *pullrecords.Manager
	// Recorder gets the Pods' events; it may be nil.
	Recorder record.EventRecorder
	// OnPulled, if set, is told after each pull, so that the node's list of images can be renewed.
	OnPulled func()
	// ObservePull, if set, is told of each pull that succeeded: the image's size in bytes, and how long it took.
	ObservePull func(size uint64, took time.Duration)
	// Logger and Clock may be nil.
	Logger *slog.Logger
	Clock  clock.Clock
}

// Error is an image that could not be made present.
type Error struct {
	// Reason is one of the Reason constants.
	Reason string
	// Message is for the user, and Remedy says what helps, where that is known.
	Message, Remedy string
	// RetryAt is when a further Ensure will try again; before that it returns ImagePullBackOff.
	RetryAt time.Time
	// Err is the cause, if there is one.
	Err error
}

// Error is the message with the reason before it.
func (e *Error) Error() string { return e.Reason + ": " + e.Message }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// PullRequest is the image of one container.
type PullRequest struct {
	Pod *corev1.Pod
	// Ref is what events are about: the Pod with the container's field path.
	Ref *corev1.ObjectReference
	// Image and Policy are the container's; an empty policy is IfNotPresent.
	Image  string
	Policy corev1.PullPolicy
	// RuntimeHandler is the handler of the Pod's RuntimeClass, empty for the default.
	RuntimeHandler string
	// Sandbox is handed to the runtime with the pull; it may be nil.
	Sandbox *runtimeapi.PodSandboxConfig
}

// Manager makes images present. It is safe for concurrent use.
type Manager struct {
	deps      Deps
	slots     chan struct{}
	rateLimit flowcontrol.PassiveRateLimiter // nil if there is none

	mu       sync.Mutex // guards waits
	backoffs map[backoffKey]backoff
}

type backoffKey struct {
	uid   types.UID
	image string
}

type backoff struct {
	delay     time.Duration
	until     time.Time
	lastError string // the message of the failure that began the wait
}

// New makes a Manager.
func New(deps Deps, config Config) (*Manager, error) {
	if deps.Service == nil {
		return nil, errors.New("image manager: needs an image service")
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
	m := &Manager{deps: deps, slots: make(chan struct{}, config.MaxParallel), backoffs: map[backoffKey]backoff{}}
	if config.PullQPS > 0 {
		if config.PullBurst <= 0 {
			config.PullBurst = defaultPullBurst
		}
		m.rateLimit = flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(config.PullQPS, config.PullBurst, deps.Clock)
	}
	return m, nil
}

// Ensure makes the image present according to the policy and returns it as the runtime describes it. The error is
// an *Error unless ctx ended. It does not retry: the caller comes again at the error's RetryAt.
func (m *Manager) Ensure(ctx context.Context, request PullRequest) (*runtimeapi.Image, error) {
	if _, err := reference.ParseNormalizedNamed(request.Image); err != nil && !isID(request.Image) {
		return nil, m.fail(request, &Error{
			Reason: ReasonInvalidName, Err: err, Remedy: "correct the image's name in the pod's template",
			Message: fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v",
				request.Image, request.Image, err),
		}, eventInspectFailed)
	}
	spec := &runtimeapi.ImageSpec{Image: withDefaultTag(request.Image), RuntimeHandler: request.RuntimeHandler}
	podCredentials := sync.OnceValue(func() []Credential { return m.credentials(ctx, request) })
	if request.Policy == corev1.PullAlways {
		return m.pull(ctx, request, spec, podCredentials)
	}
	present, err := m.inspect(ctx, spec)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, m.fail(request, &Error{
			Reason: ReasonInspect, Err: err,
			Message: fmt.Sprintf("Failed to inspect image %q: %s", request.Image, errorText(err)),
		}, eventInspectFailed)
	case present != nil && m.allowed(request, present, podCredentials):
		m.forget(backoffKey{request.Pod.UID, request.Image})
		m.event(request, corev1.EventTypeNormal, eventPulled,
			fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", request.Image))
		return present, nil
	case request.Policy == corev1.PullNever:
		// Who may not use the image is not told that it is there.
		return nil, m.fail(request, &Error{
			Remedy: "bring the image to the node (`berth images import`), allow pulling it (imagePullPolicy), or, if it was " +
				"pulled with a login, give the pod that login (imagePullSecrets)",
			Reason:  ReasonNeverPull,
			Message: fmt.Sprintf("Container image %q is not present with pull policy of Never", request.Image),
		}, eventNeverPull)
	}
	return m.pull(ctx, request, spec, podCredentials)
}

// Forget drops what is kept about a Pod's failed pulls.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.backoffs {
		if k.uid == uid {
			delete(m.backoffs, k)
		}
	}
}

// fail emits the event of an error and returns it.
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

// withDefaultTag appends the default tag where neither tag nor digest is given.
func withDefaultTag(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil || !reference.IsNameOnly(named) {
		return image
	}
	return image + ":latest"
}

// isID reports whether the image is named by its id, which is not a reference.
func isID(image string) bool { return strings.HasPrefix(image, "sha256:") }

func errorText(err error) string {
	if s, ok := status.FromError(errors.Unwrap(err)); ok && s.Code() != codes.OK {
		return s.Message()
	}
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}
