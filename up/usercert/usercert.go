// Package usercert makes client certificates for people: the key is made here and leaves the process in a kubeconfig only, the
// certificate is requested, approved and signed by the CertificateSigningRequest API, so that the audit log records it.
package usercert

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/client-go/util/keyutil"
)

// Bounds of a certificate's life: the shortest that the API accepts, and the longest that the controller manager signs.
const (
	MinLife = 10 * time.Minute
	MaxLife = 365 * 24 * time.Hour
)

// mastersGroup may do everything, and no role limits it.
const mastersGroup = "system:masters"

// Identity is the user and the groups that a certificate authenticates.
type Identity struct {
	User   string
	Groups []string
}

// Validate returns an error if the identity is none for a person.
func (i Identity) Validate() error {
	if i.User == "" {
		return errors.New("--user: want the name that roles are bound to")
	}
	for _, name := range append([]string{i.User}, i.Groups...) {
		switch {
		case name == mastersGroup:
			return fmt.Errorf("--group %s: no role limits that group and nothing revokes its certificates, so Kubernetes signs none; "+
				"admin.kubeconfig has one, and `kubectl create clusterrolebinding %s-admin --clusterrole cluster-admin --user %s` gives a user all rights",
				mastersGroup, i.User, i.User)
		case name == "", strings.TrimSpace(name) != name:
			return fmt.Errorf("--user and --group %q: want a name without spaces around it", name)
		case strings.HasPrefix(name, "system:"), strings.HasPrefix(name, "berth:"):
			return fmt.Errorf("%q: names that begin with system: or berth: are those of components", name)
		}
	}
	return nil
}

// Certificate is a client certificate with its key, both in PEM.
type Certificate struct{ Cert, Key []byte }

// Issue makes a certificate that is valid for life. The request that it creates is deleted again.
func Issue(ctx context.Context, client kubernetes.Interface, identity Identity, life time.Duration) (issued Certificate, err error) {
	if err := identity.Validate(); err != nil {
		return issued, err
	}
	if life < MinLife || life > MaxLife {
		return issued, fmt.Errorf("--ttl %s: want between %s and %s", life, MinLife, MaxLife)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return issued, fmt.Errorf("create a key: %w", err)
	}
	if issued.Key, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return issued, fmt.Errorf("encode the key: %w", err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: identity.User, Organization: identity.Groups}}, key)
	if err != nil {
		return issued, fmt.Errorf("create the request of a certificate: %w", err)
	}
	issued.Cert, err = sign(ctx, client, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}), key, life)
	return issued, err
}

// sign has the request signed by the cluster.
func sign(ctx context.Context, client kubernetes.Interface, request []byte, key crypto.Signer, life time.Duration) (cert []byte, err error) {
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, request, "", certificatesv1.KubeAPIServerClientSignerName, &life,
		[]certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}, key)
	if err != nil {
		return nil, fmt.Errorf("request a certificate: %w", err)
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	defer func() {
		if deleteErr := requests.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{}); deleteErr != nil {
			err = errors.Join(err, fmt.Errorf("delete the request %s: %w", name, deleteErr))
		}
	}()
	object, err := requests.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the request %s: %w", name, err)
	}
	object.Status.Conditions = append(object.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "BerthKubeconfig", Message: "requested by berth kubeconfig",
	})
	if _, err := requests.UpdateApproval(ctx, name, object, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("approve the request %s: %w", name, err)
	}
	cert, err = csr.WaitForCertificate(ctx, client, name, uid)
	if err != nil {
		return nil, fmt.Errorf("wait for the certificate of the request %s: %w", name, err)
	}
	return cert, nil
}

// HasRights reports whether any role is bound to the user or to one of the groups.
func HasRights(ctx context.Context, client kubernetes.Interface, identity Identity) (bool, error) {
	names := func(subject rbacv1.Subject) bool {
		return subject.Kind == rbacv1.UserKind && subject.Name == identity.User ||
			subject.Kind == rbacv1.GroupKind && slices.Contains(identity.Groups, subject.Name)
	}
	whole, err := client.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list cluster role bindings: %w", err)
	}
	for _, binding := range whole.Items {
		if slices.ContainsFunc(binding.Subjects, names) {
			return true, nil
		}
	}
	parts, err := client.RbacV1().RoleBindings(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list role bindings: %w", err)
	}
	for _, binding := range parts.Items {
		if slices.ContainsFunc(binding.Subjects, names) {
			return true, nil
		}
	}
	return false, nil
}
