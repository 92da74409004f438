package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/images/pullrecords"
	"github.com/berth-dev/berth/timeline"
)

// pull pulls the image unless its backoff has not expired.
func (m *Manager) pull(ctx context.Context, request PullRequest, spec *runtimeapi.ImageSpec, podCredentials func() []Credential) (
	*runtimeapi.Image, error,
) {
	k := backoffKey{request.Pod.UID, request.Image}
	m.mu.Lock()
	w, failed := m.backoffs[k]
	m.mu.Unlock()
	if failed && m.deps.Clock.Now().Before(w.until) {
		message := fmt.Sprintf("Back-off pulling image %q", request.Image)
		m.event(request, corev1.EventTypeNormal, eventBackOff, message)
		m.event(request, corev1.EventTypeWarning, eventFailed, "Error: "+ReasonBackOff)
		return nil, &Error{Reason: ReasonBackOff, Message: message + ": " + w.lastError, RetryAt: w.until}
	}
	credentials := podCredentials() // before the pull has its turn: a credential provider that takes long delays no other image
	queued := m.deps.Clock.Now()
	m.event(request, corev1.EventTypeNormal, eventPulling, fmt.Sprintf("Pulling image %q", request.Image))
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	start := m.deps.Clock.Now()
	timeline.Current(ctx).AddWait(start.Sub(queued))
	image, err := m.pullAndRecord(ctx, request, spec, credentials)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, m.failPull(request, k, err)
	}
	m.forget(k)
	now := m.deps.Clock.Now()
	took, withWait := now.Sub(start).Truncate(time.Millisecond), now.Sub(queued).Truncate(time.Millisecond)
	if m.deps.ObservePull != nil {
		m.deps.ObservePull(image.GetSize(), withWait)
	}
	m.event(request, corev1.EventTypeNormal, eventPulled, fmt.Sprintf(
		"Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.",
		request.Image, took, withWait, image.GetSize()))
	if m.deps.OnPulled != nil {
		m.deps.OnPulled()
	}
	return image, nil
}

// pullAndRecord pulls the image and updates the pull records.
func (m *Manager) pullAndRecord(ctx context.Context, request PullRequest, spec *runtimeapi.ImageSpec, credentials []Credential) (
	*runtimeapi.Image, error,
) {
	if m.rateLimit != nil && !m.rateLimit.TryAccept() {
		return nil, errTooManyPulls
	}
	if m.deps.PullRecords == nil {
		image, _, err := m.pullWithCredentials(ctx, request, spec, credentials)
		return image, err
	}
	before := m.idBefore(ctx, request, spec)
	if err := m.deps.PullRecords.BeginPull(request.Image); err != nil {
		return nil, fmt.Errorf("begin to pull image %q: %w", request.Image, err)
	}
	image, source, err := m.pullWithCredentials(ctx, request, spec, credentials)
	switch {
	case outcomeUnknown(ctx, err):
		m.deps.PullRecords.PullOutcomeUnknown(request.Image, before)
		return nil, err
	case err != nil:
		m.deps.PullRecords.PullFailed(request.Image)
		return nil, err
	}
	m.deps.PullRecords.PullSucceeded(request.Image, image.Id, source)
	return image, nil
}

// idBefore returns the id of the image that is present although it is about to be pulled, because the policy is Always; empty for none.
func (m *Manager) idBefore(ctx context.Context, request PullRequest, spec *runtimeapi.ImageSpec) string {
	if request.Policy != corev1.PullAlways {
		return ""
	}
	present, err := m.inspect(ctx, spec)
	if err != nil {
		return "" // its records decide
	}
	return present.GetId()
}

// outcomeUnknown reports whether the runtime may continue a pull that failed on this side: because ctx ended, or the connection. A runtime
// also answers with the codes of a call that ended or took too long, if the registry does not answer: then its pull has ended.
func outcomeUnknown(ctx context.Context, err error) bool {
	if err == nil {
		return false
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok { // with one login after the other
		return slices.ContainsFunc(several.Unwrap(), func(each error) bool { return outcomeUnknown(ctx, each) })
	}
	return ctx.Err() != nil || status.Code(err) == codes.Unavailable
}

// pullWithCredentials tries each of the credentials, or an anonymous pull if there are none, and returns the source of
// the first one that succeeds.
func (m *Manager) pullWithCredentials(ctx context.Context, request PullRequest, spec *runtimeapi.ImageSpec, credentials []Credential) (
	image *runtimeapi.Image, source pullrecords.Source, err error,
) {
	if len(credentials) == 0 {
		credentials = []Credential{{}}
	}
	var errs []error
	for _, credential := range credentials {
		resp, err := m.deps.Service.PullImage(ctx, &runtimeapi.PullImageRequest{
			Image: spec, Auth: credential.Auth, SandboxConfig: request.Sandbox,
		})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		image, err := m.inspect(ctx, &runtimeapi.ImageSpec{Image: resp.ImageRef, RuntimeHandler: request.RuntimeHandler})
		if err != nil || image == nil {
			image = &runtimeapi.Image{Id: resp.ImageRef, Spec: spec}
		}
		return image, credential.Source, nil
	}
	return nil, source, errors.Join(errs...)
}

// credentials returns the Pod's credentials for the image. If some cannot be read, it records an event and returns the
// others.
func (m *Manager) credentials(ctx context.Context, request PullRequest) []Credential {
	if m.deps.Keyring == nil {
		return nil
	}
	found, err := m.deps.Keyring.Credentials(ctx, request.Pod, request.Image)
	if err != nil {
		m.event(request, corev1.EventTypeWarning, eventNoSecret,
			fmt.Sprintf("Unable to use some image pull secrets; attempting to pull the image may not succeed: %v", err))
	}
	return found
}

// allowed reports whether the Pod may use the present image. If the pull records cannot be read it returns false:
// pulling the image verifies the Pod's credentials.
func (m *Manager) allowed(request PullRequest, present *runtimeapi.Image, podCredentials func() []Credential) bool {
	if m.deps.PullRecords == nil {
		return true
	}
	allowed, err := m.deps.PullRecords.Allowed(request.Image, present.Id, func() []pullrecords.Source {
		var sources []pullrecords.Source
		for _, credential := range podCredentials() {
			sources = append(sources, credential.Source)
		}
		return sources
	})
	if err != nil {
		m.deps.Logger.Warn("image pull records unreadable; pulling the image again", "image", request.Image, "error", err)
	}
	return allowed
}

// failPull updates the backoff and returns the failure.
func (m *Manager) failPull(request PullRequest, k backoffKey, err error) error {
	text := errorText(err)
	reason, message := describe(request.Image, text)
	now := m.deps.Clock.Now()
	m.mu.Lock()
	w := m.backoffs[k]
	if now.Sub(w.failed) > forgetAfter { // a pull may take that long itself
		w.delay = 0
	}
	w.delay = min(max(2*w.delay, firstDelay), maxDelay)
	w.failed, w.until, w.lastError = now, now.Add(w.delay), reason+": "+message
	m.backoffs[k] = w
	m.mu.Unlock()
	m.event(request, corev1.EventTypeWarning, eventFailed,
		fmt.Sprintf("Failed to pull image %q: %s", request.Image, text))
	// RetryAt is now: the next Ensure returns ImagePullBackOff with the time of the next pull.
	return m.fail(request, &Error{Reason: reason, Message: message, RetryAt: now, Err: err}, eventFailed)
}

// describe returns the reason and the message of a failed pull. Runtimes name two reasons at the beginning of an error's text.
func describe(image, text string) (reason, message string) {
	for reason, cause := range map[string]string{
		ReasonUnavailable:  "the registry is unavailable",
		ReasonBadSignature: "the signature validation failed",
	} {
		if details, ok := strings.CutPrefix(text, reason); ok {
			return reason, fmt.Sprintf("image pull failed for %s because %s%s", image, cause, details)
		}
	}
	return ReasonPull, text
}
