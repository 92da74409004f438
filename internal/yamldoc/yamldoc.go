// Package yamldoc checks how many YAML documents a configuration file has: decoders read the first one and ignore the others.
package yamldoc

import (
	"bufio"
	"errors"
	"io"
	"strings"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// lines makes all line breaks of YAML 1.1 those that the reader knows.
var lines = strings.NewReplacer("\r\n", "\n", "\r", "\n", "\u0085", "\n", "\u2028", "\n", "\u2029", "\n")

// CheckOne returns an error for a file with several documents. A document without content does not count.
func CheckOne(text []byte) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(lines.Replace(string(text)))))
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
