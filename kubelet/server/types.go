package server

import (
	"context"
	"crypto/tls"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TLSOptions are the serving certificate and the connection rules of a server.
type TLSOptions struct {
	// Config may limit versions and ciphers. It may be nil.
	Config *tls.Config
	// CertFile and KeyFile are files with the certificate and key, in PEM form.
	CertFile, KeyFile string
}

// RequestAttributesGetter returns the attributes by which a user's request is authorized. One of them that is allowed
// suffices; without any the request is rejected.
type RequestAttributesGetter interface {
	GetRequestAttributes(ctx context.Context, u user.Info, r *http.Request) []authorizer.Attributes
}

// AuthInterface authenticates and authorizes requests.
type AuthInterface interface {
	authenticator.Request
	RequestAttributesGetter
	authorizer.Authorizer
}
