package yamldoc_test

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/berth-dev/berth/internal/yamldoc"
)

// FuzzCheckOne compares the check with the documents that a YAML decoder reads: of a file that passes, decoders ignore nothing.
func FuzzCheckOne(f *testing.F) {
	for _, text := range []string{"a: 1\n---\n", "# first\n--- # second\na: 1\n", "a: 1\n...\nb: 2\n", "a: |\n  ---\n", "a: 1\n---\r\nb: 2\n", "a: 1\n... # end\n---\nb: 2"} {
		f.Add([]byte(text))
		f.Add([]byte("kind: x\n" + text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if yamldoc.CheckOne(text) != nil {
			return
		}
		decoder, documents := yaml.NewDecoder(bytes.NewReader(text)), 0
		for {
			var content any
			err := decoder.Decode(&content)
			if err != nil {
				if !errors.Is(err, io.EOF) {
					return // it is refused later
				}
				break
			}
			if first, ok := content.(map[string]any); documents == 0 && content != nil && (!ok || first["kind"] == nil) {
				return // no decoder accepts it
			}
			if content != nil {
				documents++
			}
		}
		if documents > 1 {
			t.Fatalf("%q has %d documents", text, documents)
		}
	})
}
