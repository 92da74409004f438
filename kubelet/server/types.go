package server

import (
	"crypto/tls"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TLSOptions are the serving certificate and the rules of a server's connections.
type TLSOptions struct {
	// Config may limit versions and ciphers. It may be nil.
	Config *tls.Config
	// CertFile and KeyFile hold the certificate, in PEM form.
	CertFile, KeyFile string
}

// AuthInterface decides who may ask the node what.
type AuthInterface interface {
	authenticator.Request
	authorizer.Authorizer
}
