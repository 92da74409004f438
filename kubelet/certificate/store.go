package certificate

import (
	"crypto/tls"
	"errors"

	"k8s.io/client-go/util/certificate"
)

// announced is a store that tells of each certificate that it was given, and takes none that is not wanted any more: a
// request may be answered when there is a newer one.
type announced struct {
	certificate.Store
	tell   func(*tls.Certificate)
	wanted func() bool
}

// Update implements certificate.Store.
func (a announced) Update(cert, key []byte) (*tls.Certificate, error) {
	if !a.wanted() {
		return nil, errors.New("store a certificate: another one is asked for by now")
	}
	pair, err := a.Store.Update(cert, key)
	if err == nil {
		a.tell(pair)
	}
	return pair, err
}
