package daemon

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/internal/wakeup"
)

const (
	// probeTimeout bounds one question to the API server before the start.
	probeTimeout = 5 * time.Second
	// An API server that has just started may reject who it accepts a moment later: it is asked again for about as long.
	probeRetries = 5
	probePause   = 2 * time.Second
)

// probe asks the API server of a kubeconfig who the caller is, and whether it may read its Node if one is named. An API server that
// cannot be reached is no error: it may be a static Pod of this node. One of another cluster is: its certificate is not of the
// kubeconfig's CA, or it does not accept the credentials.
func (r *runner) probe(ctx context.Context, config *rest.Config, path, node string) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("kubeconfig %q: %w", path, err)
	}
	for try := 1; ; try++ {
		err := ask(ctx, client, node)
		switch {
		case err == nil || ctx.Err() != nil:
			return nil
		case isOtherCA(err):
			return fmt.Errorf("kubeconfig %q: the API server %s is not the one of its CA: is it of another cluster? %w", path, config.Host, err)
		case !apierrors.IsUnauthorized(err) && !apierrors.IsForbidden(err):
			r.deps.Logger.Warn("API server cannot be reached; the kubelet goes on and retries", "server", config.Host, "error", err)
			return nil
		case try == probeRetries && apierrors.IsUnauthorized(err):
			return fmt.Errorf("kubeconfig %q: the API server %s does not accept its credentials: have they expired, or are they of another cluster? %w",
				path, config.Host, err)
		case try == probeRetries:
			return fmt.Errorf("kubeconfig %q: its user may not read Node %q at %s: is it of another node or cluster? %w", path, node, config.Host, err)
		}
		if !wakeup.Sleep(ctx, r.deps.Clock, probePause) {
			return nil
		}
	}
}

// ask returns the API server's error about the caller's identity.
func ask(ctx context.Context, client kubernetes.Interface, node string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if node == "" {
		_, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
			return nil // it knows the caller
		}
		return err
	}
	_, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil // it is not registered yet
	}
	return err
}

// isOtherCA reports whether the API server's certificate is not valid for the kubeconfig's CA.
func isOtherCA(err error) bool {
	var unknown x509.UnknownAuthorityError
	var verification *tls.CertificateVerificationError
	return errors.As(err, &unknown) || errors.As(err, &verification)
}
