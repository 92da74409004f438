package trustbundle

import (
	"bytes"
	"cmp"
	"encoding/pem"
	"hash/maphash"
	"slices"
)

// order makes the order of certificates differ from process to process, so that no program relies on one.
var order = maphash.MakeSeed()

// join returns the certificates of the bundles in PEM form, each once, without the text between them.
func join(bundles []*bundle) []byte {
	known := map[string]uint64{}
	for _, one := range bundles {
		rest := []byte(one.Spec.TrustBundle)
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			known[string(block.Bytes)] = maphash.Bytes(order, block.Bytes)
		}
	}
	certificates := make([]string, 0, len(known))
	for certificate := range known {
		certificates = append(certificates, certificate)
	}
	slices.SortFunc(certificates, func(a, b string) int { return cmp.Or(cmp.Compare(known[a], known[b]), cmp.Compare(a, b)) })
	out := bytes.Buffer{}
	for _, certificate := range certificates {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(certificate)}))
	}
	return out.Bytes()
}
