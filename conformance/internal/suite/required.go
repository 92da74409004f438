package suite

import (
	"fmt"

	"k8s.io/kubernetes/test/conformance/testdata"
	"sigs.k8s.io/yaml"
)

// Required returns the names of the specs that upstream requires of a conformant cluster: those of its conformance.yaml, of
// the version that this module pins.
func Required() ([]string, error) {
	data, err := testdata.GetConformanceTestdataFS().EmbeddedFS.ReadFile("conformance.yaml")
	if err != nil {
		return nil, fmt.Errorf("read upstream's list of conformance specs: %w", err)
	}
	var specs []struct {
		Codename string `json:"codename"`
	}
	if err := yaml.Unmarshal(data, &specs); err != nil {
		return nil, fmt.Errorf("read upstream's list of conformance specs: %w", err)
	}
	names := make([]string, 0, len(specs))
	for _, spec := range specs {
		names = append(names, spec.Codename)
	}
	return names, nil
}
