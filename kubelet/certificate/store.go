package certificate

import (
	"crypto/tls"
	"errors"

	"k8s.io/client-go/util/certificate"
)

// notifyingStore is a store that calls notify with each certificate it stores. It rejects a certificate once isCurrent
// returns false: a request may be answered after a newer one was submitted.
type notifyingStore struct {
	certificate.Store
	notify    func(*tls.Certificate)
	isCurrent func() bool
}

// Update implements certificate.Store.
func (s notifyingStore) Update(cert, key []byte) (*tls.Certificate, error) {
	if !s.isCurrent() {
		return nil, errors.New("store certificate: a newer one was requested")
	}
	pair, err := s.Store.Update(cert, key)
	if err == nil {
		s.notify(pair)
	}
	return pair, err
}
