package certificate

import (
	"crypto/tls"

	"k8s.io/client-go/util/certificate"
)

// announced is a store that tells of each certificate that it was given.
type announced struct {
	certificate.Store
	tell func(*tls.Certificate)
}

// Update implements certificate.Store.
func (a announced) Update(cert, key []byte) (*tls.Certificate, error) {
	pair, err := a.Store.Update(cert, key)
	if err == nil {
		a.tell(pair)
	}
	return pair, err
}
