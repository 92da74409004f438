package flagfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"
)

// File is a parsed file. Its keys are names of flags without dashes.
type File struct {
	// Path is where it was read.
	Path    string
	entries []entry
}

// entry is one key of the file.
type entry struct {
	key   string
	line  int
	value *yaml.Node
}

// Read parses the file at path. It fails if the file is not one YAML mapping with distinct keys; each error names the file and, but
// for some errors of the syntax, the line.
func Read(path string) (*File, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return parse(path, data)
}

func parse(path string, data []byte) (*File, error) {
	file := &File{Path: path}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return file, nil // nothing but comments
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s", path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: it has a second document, after a line with ---: put all keys into one", path)
	}
	root := document.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return file, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: want keys with values, such as `api-port: 6443`", path, root.Line)
	}
	seen := map[string]int{}
	var errs []error
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Tag == "!!merge" {
			errs = append(errs, fmt.Errorf("%s:%d: a key is the name of a flag", path, key.Line))
			continue
		}
		if first, twice := seen[key.Value]; twice {
			errs = append(errs, fmt.Errorf("%s:%d: %s stands in line %d, too: remove one of them", path, key.Line, key.Value, first))
			continue
		}
		seen[key.Value] = key.Line
		file.entries = append(file.entries, entry{key.Value, key.Line, value})
	}
	return file, errors.Join(errs...)
}

// Scalar returns the value of a key that is a single one; empty, false if the file does not have the key.
func (f *File) Scalar(key string) (value string, exists bool, err error) {
	for _, e := range f.entries {
		if e.key == key {
			value, err := scalar(e.value)
			if err != nil {
				return "", true, fmt.Errorf("%s:%d: %s: %w", f.Path, e.line, key, err)
			}
			return value, true, nil
		}
	}
	return "", false, nil
}
