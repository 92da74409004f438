package certificate

import (
	"crypto/tls"
	"errors"

	"k8s.io/client-go/util/certificate"
)

// notifyingStore is a store that tells of each certificate that it was given, and takes none that is not wanted any more: a
// request may be answered when there is a newer one.
type notifyingStore struct {
	certificate.Store
	notify    func(*tls.Certificate)
	isCurrent func() bool
}

// Update implements certificate.Store.
func (a notifyingStore) Update(cert, key []byte) (*tls.Certificate, error) {
	if !a.isCurrent() {
		return nil, errors.New("store a certificate: another one is asked for by now")
	}
	pair, err := a.Store.Update(cert, key)
	if err == nil {
		a.notify(pair)
	}
	return pair, err
}
