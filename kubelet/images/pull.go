package images

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/kubelet/images/ledger"
	"github.com/berth-dev/berth/timeline"
)

// pull fetches the image unless its backoff lasts.
func (m *Manager) pull(ctx context.Context, want Want, spec *runtimeapi.ImageSpec, held func() []Credential) (
	*runtimeapi.Image, error,
) {
	k := key{want.Pod.UID, want.Image}
	m.mu.Lock()
	w, failed := m.waits[k]
	m.mu.Unlock()
	if failed && m.deps.Clock.Now().Before(w.until) {
		message := fmt.Sprintf("Back-off pulling image %q", want.Image)
		m.event(want, corev1.EventTypeNormal, eventBackOff, message)
		m.event(want, corev1.EventTypeWarning, eventFailed, "Error: "+ReasonBackOff)
		return nil, &Error{Reason: ReasonBackOff, Message: message + ": " + w.last, RetryAt: w.until}
	}
	asked := m.deps.Clock.Now()
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	timeline.Current(ctx).Waited(m.deps.Clock.Since(asked))
	m.event(want, corev1.EventTypeNormal, eventPulling, fmt.Sprintf("Pulling image %q", want.Image))
	start := m.deps.Clock.Now()
	image, err := m.fetch(ctx, want, spec, held)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, m.failPull(want, k, err)
	}
	m.forget(k)
	took := m.deps.Clock.Since(start).Truncate(time.Millisecond)
	if m.deps.Observe != nil {
		m.deps.Observe(image.GetSize(), took)
	}
	m.event(want, corev1.EventTypeNormal, eventPulled, fmt.Sprintf(
		"Successfully pulled image %q in %v (%v including waiting). Image size: %d bytes.",
		want.Image, took, took, image.GetSize()))
	if m.deps.Pulled != nil {
		m.deps.Pulled()
	}
	return image, nil
}

// fetch pulls and keeps the ledger.
func (m *Manager) fetch(ctx context.Context, want Want, spec *runtimeapi.ImageSpec, held func() []Credential) (
	*runtimeapi.Image, error,
) {
	if m.limit != nil && !m.limit.TryAccept() {
		return nil, errTooManyPulls
	}
	if m.deps.Ledger == nil {
		image, _, err := m.try(ctx, want, spec, held())
		return image, err
	}
	if err := m.deps.Ledger.Begin(want.Image); err != nil {
		return nil, fmt.Errorf("begin to pull image %q: %w", want.Image, err)
	}
	image, source, err := m.try(ctx, want, spec, held())
	switch {
	case unknownEnd(ctx, err):
		m.deps.Ledger.Unknown(want.Image)
		return nil, err
	case err != nil:
		m.deps.Ledger.Failed(want.Image)
		return nil, err
	}
	m.deps.Ledger.Pulled(want.Image, image.Id, source)
	return image, nil
}

// unknownEnd reports whether the runtime may have gone on with a pull that failed for us.
func unknownEnd(ctx context.Context, err error) bool {
	if err == nil {
		return false
	}
	code := status.Code(err)
	return ctx.Err() != nil || code == codes.Canceled || code == codes.DeadlineExceeded || code == codes.Unavailable
}

// try pulls with each of the credentials, and without any if there are none. The source is that of the first that did.
func (m *Manager) try(ctx context.Context, want Want, spec *runtimeapi.ImageSpec, credentials []Credential) (
	image *runtimeapi.Image, source ledger.Source, err error,
) {
	if len(credentials) == 0 {
		credentials = []Credential{{}}
	}
	var errs []error
	for _, credential := range credentials {
		resp, err := m.deps.Service.PullImage(ctx, &runtimeapi.PullImageRequest{
			Image: spec, Auth: credential.Auth, SandboxConfig: want.Sandbox,
		})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		image, err := m.inspect(ctx, &runtimeapi.ImageSpec{Image: resp.ImageRef, RuntimeHandler: want.RuntimeHandler})
		if err != nil || image == nil {
			image = &runtimeapi.Image{Id: resp.ImageRef, Spec: spec}
		}
		return image, credential.Source, nil
	}
	return nil, source, errors.Join(errs...)
}

// credentials are the Pod's for the image. Those that cannot be had are told of in an event, and the others are used.
func (m *Manager) credentials(ctx context.Context, want Want) []Credential {
	if m.deps.Keyring == nil {
		return nil
	}
	found, err := m.deps.Keyring.Credentials(ctx, want.Pod, want.Image)
	if err != nil {
		m.event(want, corev1.EventTypeWarning, eventNoSecret,
			fmt.Sprintf("Unable to use some image pull secrets; attempting to pull the image may not succeed: %v", err))
	}
	return found
}

// may reports whether the Pod may use the image that is there. If that cannot be found out it has to be pulled, which
// tells.
func (m *Manager) may(want Want, present *runtimeapi.Image, held func() []Credential) bool {
	if m.deps.Ledger == nil {
		return true
	}
	may, err := m.deps.Ledger.May(want.Image, present.Id, func() []ledger.Source {
		var sources []ledger.Source
		for _, credential := range held() {
			sources = append(sources, credential.Source)
		}
		return sources
	})
	if err != nil {
		m.deps.Logger.Warn("who may use an image cannot be read: it has to be pulled", "image", want.Image, "error", err)
	}
	return may
}

// failPull notes the failure for the backoff and returns it.
func (m *Manager) failPull(want Want, k key, err error) error {
	reason := ReasonPull
	for _, known := range []string{ReasonUnavailable, ReasonBadSignature} {
		if strings.Contains(text(err), known) {
			reason = known
		}
	}
	now := m.deps.Clock.Now()
	m.mu.Lock()
	w := m.waits[k]
	w.delay = min(max(2*w.delay, firstDelay), maxDelay)
	w.until, w.last = now.Add(w.delay), reason+": "+text(err)
	m.waits[k] = w
	m.mu.Unlock()
	m.event(want, corev1.EventTypeWarning, eventFailed,
		fmt.Sprintf("Failed to pull image %q: %s", want.Image, text(err)))
	// The RetryAt is now: the next Ensure finds the backoff and says so, with the time of the next pull.
	return m.fail(want, &Error{Reason: reason, Message: text(err), RetryAt: now, Err: err}, eventFailed)
}
