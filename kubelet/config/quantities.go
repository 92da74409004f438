package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/berth-dev/berth/internal/quantity"
)

// checkQuantities returns an error for a quantity that would take minutes and gigabytes to decode: see package quantity. What else is wrong
// with the document decoding says.
func checkQuantities(document []byte) error {
	var content any
	if yaml.Unmarshal(document, &content) != nil {
		return nil
	}
	return checkFields("", content)
}

// checkFields checks the quantities below a field, of any kind of object.
func checkFields(path string, content any) error {
	switch content := content.(type) {
	case []any:
		for i, item := range content {
			if err := checkFields(fmt.Sprintf("%s[%d]", path, i), item); err != nil {
				return err
			}
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(content)) {
			field := name
			if path != "" {
				field = path + "." + name
			}
			check := checkFields
			switch name {
			case "limits", "requests", "overhead", "sizeLimit", "divisor":
				check = checkValues
			}
			if err := check(field, content[name]); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkValues checks a quantity, or each of a map.
func checkValues(path string, content any) error {
	switch content := content.(type) {
	case string:
		if _, err := quantity.Parse(strings.TrimSpace(content)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(content)) {
			if err := checkValues(path+"."+name, content[name]); err != nil {
				return err
			}
		}
	}
	return nil
}
