package server

import (
	"crypto/tls"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TLSOptions are the serving certificate and the connection rules of a server.
type TLSOptions struct {
	// Config may limit versions and ciphers. It may be nil.
	Config *tls.Config
	// CertFile and KeyFile are files with the certificate and key, in PEM form.
	CertFile, KeyFile string
}

// AuthInterface authenticates and authorizes requests.
type AuthInterface interface {
	authenticator.Request
	authorizer.Authorizer
}
