// Package yamldoc checks how many YAML documents a configuration file has: decoders read the first one and ignore the others.
package yamldoc

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// CheckOne returns an error for a file with several documents. A document without content does not count.
func CheckOne(text []byte) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	documents := 0
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var content any // nil for comments alone
		if err := yaml.Unmarshal(document, &content); err == nil && content == nil {
			continue
		}
		documents++
		if documents > 1 {
			return errors.New("it has more than one YAML document: a kubelet reads one")
		}
	}
}
