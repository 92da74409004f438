package trustbundle

import (
	"bytes"
	"encoding/pem"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzJoin joins arbitrary bundles: each certificate of one of them is in the result, once, and nothing else is.
func FuzzJoin(f *testing.F) {
	one := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("one")}))
	two := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"a": "b"}, Bytes: []byte("two")}))
	f.Add(one+"text\n"+two, two+one)
	f.Add("", one[:30]+one)
	f.Add("-----BEGIN x-----\n-----END x-----", "-----BEGIN \n")
	f.Fuzz(func(t *testing.T, first, second string) {
		began := time.Now()
		bundles := []*bundle{{}, {}}
		bundles[0].Spec.TrustBundle, bundles[1].Spec.TrustBundle = first, second
		joined := join(bundles)
		require.Less(t, time.Since(began), 10*time.Second)
		want := map[string]bool{}
		for _, text := range []string{first, second} {
			for block, rest := pem.Decode([]byte(text)); block != nil; block, rest = pem.Decode(rest) {
				want[string(block.Bytes)] = true
			}
		}
		var clean []byte
		block, rest := pem.Decode(joined)
		for ; block != nil; block, rest = pem.Decode(rest) {
			require.Contains(t, want, string(block.Bytes))
			delete(want, string(block.Bytes))
			require.Equal(t, "CERTIFICATE", block.Type)
			clean = append(clean, pem.EncodeToMemory(block)...)
		}
		require.Empty(t, want)
		require.True(t, bytes.Equal(clean, joined), "there is text between the certificates")
		require.Equal(t, joined, join(bundles), "the order is one for the process")
	})
}
