package podcertificate

import (
	"bytes"
	"encoding/pem"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzChain cleans an arbitrary chain of a signer: the certificates stay as they are and in their order, and nothing else does.
func FuzzChain(f *testing.F) {
	block := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"a": "b"}, Bytes: []byte("certificate")}))
	f.Add(block + "text\n" + block)
	f.Add("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n")
	f.Add("-----BEGIN \n-----END \n" + block[:20])
	f.Fuzz(func(t *testing.T, chain string) {
		began := time.Now()
		clean := cleanChain(chain)
		require.Less(t, time.Since(began), 10*time.Second)
		for before, after := []byte(chain), clean; ; {
			var from, to *pem.Block
			from, before = pem.Decode(before)
			to, after = pem.Decode(after)
			if from == nil {
				require.Nil(t, to)
				require.Empty(t, after)
				break
			}
			require.Equal(t, "CERTIFICATE", to.Type)
			require.Empty(t, to.Headers)
			require.True(t, bytes.Equal(from.Bytes, to.Bytes))
		}
		require.Equal(t, clean, cleanChain(string(clean)))
	})
}
