package settings

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Support says what becomes of the value of a field or flag.
type Support string

const (
	// Honoured: every value has the effect that Does describes.
	Honoured Support = "honoured"
	// Limited: some values are refused; the others have the effect.
	Limited Support = "honoured, with limits"
	// Refused: only the default is possible.
	Refused Support = "only the default"
	// Warned: only the default has an effect; another value is accepted with a warning.
	Warned Support = "a warning"
	// Moot: there is nothing to do for any value.
	Moot Support = "nothing to do"
)

// Field says what becomes of one field of a Configuration.
type Field struct {
	// Path is the name of the field in a file, behind those of the fields around it: authentication.x509.clientCAFile.
	Path string
	// Flag is the name of the command line's flag for it; empty if there is none.
	Flag string
	// Support is what becomes of it.
	Support Support
	// Does says what the value does, as a phrase without a subject.
	Does string
	// Limit says which values are refused or warned about, and why; empty for none.
	Limit string
	// Limits reports whether the value is one of them. A nil Limits of a field that is Refused or Warned means each value
	// but the default.
	Limits func(c *Configuration) bool
}

// Fields returns the table of all fields of a Configuration. A field whose type is a struct of this API stands in it by its own
// fields; maps, lists and the values that Kubernetes writes as one (durations, quantities) by themselves.
func Fields() []Field {
	return slices.Concat(serverFields(), nodeFields(), podFields(), imageFields(), resourceFields(), machineFields(), shutdownAndTracingFields())
}

// Name is how a message names the field.
func (f Field) Name() string {
	if f.Flag == "" {
		return f.Path
	}
	return f.Path + " (--" + f.Flag + ")"
}

// Check returns the warnings about values that have no effect here, and an error for each value that is refused. defaults is a
// Configuration with the defaults of Kubernetes.
func Check(c, defaults *Configuration) (warnings []string, err error) {
	own, fallback, err := documents(c, defaults)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, f := range Fields() {
		if f.Limit == "" || !f.limits(c, own, fallback) {
			continue
		}
		message := fmt.Sprintf("%s %s: %s", f.Name(), shown(lookup(own, f.Path)), f.Limit)
		if f.Support == Warned {
			warnings = append(warnings, message)
		} else {
			errs = append(errs, errors.New(message))
		}
	}
	return warnings, errors.Join(errs...)
}

func (f Field) limits(c *Configuration, own, fallback map[string]any) bool {
	if f.Limits != nil {
		return f.Limits(c)
	}
	if f.Support != Refused && f.Support != Warned {
		return false
	}
	return shown(lookup(own, f.Path)) != shown(lookup(fallback, f.Path))
}

// documents returns both configurations as their files have them.
func documents(c, defaults *Configuration) (own, fallback map[string]any, err error) {
	if own, err = document(c); err == nil {
		fallback, err = document(defaults)
	}
	return own, fallback, err
}

func document(c *Configuration) (map[string]any, error) {
	data, err := yaml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("write KubeletConfiguration: %w", err)
	}
	out := map[string]any{}
	if err := yaml.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("read KubeletConfiguration: %w", err)
	}
	return out, nil
}

// lookup returns the value of a path, nil if a file without it means the same.
func lookup(in map[string]any, path string) any {
	var value any = in
	for name := range strings.SplitSeq(path, ".") {
		fields, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = fields[name]
	}
	return value
}

// shown returns a value as a message has it, on one line.
func shown(value any) string {
	switch value := value.(type) {
	case nil:
		return `""`
	case string:
		return fmt.Sprintf("%q", value)
	case []any, map[string]any:
		return strings.TrimPrefix(fmt.Sprint(value), "map")
	}
	return fmt.Sprint(value)
}
