package flagfile

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-dev/berth/internal/suggest"
)

// Options say how to apply a file. The zero value allows all flags.
type Options struct {
	// Refused are flags that the file may not set, with what the error recommends.
	Refused map[string]string
	// Describe rewrites the error of a flag that does not accept its value; nil leaves it as pflag has it.
	Describe func(error) error
}

// Apply sets those flags that have not been set yet, and returns the lines of the file that they are from, by their names. It fails
// for a key that is no flag, and for a value that the flag does not accept; each error names the file, the line and the key.
func (f *File) Apply(flags *pflag.FlagSet, options Options) (lines map[string]int, err error) {
	lines = map[string]int{}
	var errs []error
	for _, e := range f.entries {
		flag := flags.Lookup(e.key)
		advice, refused := options.Refused[e.key]
		switch {
		case refused && flag != nil:
			err = fmt.Errorf("it may not be in the file: %s", advice)
		case flag == nil || flag.Hidden:
			err = unknown(flags, e.key, options.Refused)
		case flag.Changed:
			continue
		default:
			err = set(flags, flag, e.value)
			lines[e.key] = e.line
		}
		if err != nil {
			if options.Describe != nil {
				err = options.Describe(err)
			}
			errs = append(errs, fmt.Errorf("%s:%d: %s: %w", f.Path, e.line, e.key, err))
		}
	}
	return lines, errors.Join(errs...)
}

// unknown returns the error for a key that is no flag, with the flag that it probably means.
func unknown(flags *pflag.FlagSet, key string, refused map[string]string) error {
	var known []string
	flags.VisitAll(func(flag *pflag.Flag) {
		if _, ok := refused[flag.Name]; !ok && !flag.Hidden {
			known = append(known, flag.Name)
		}
	})
	if near := suggest.Closest(key, known); near != "" {
		return fmt.Errorf("unknown key: did you mean %s?", near)
	}
	return errors.New("unknown key: the keys are the names of the command's flags, without dashes")
}

// set sets one flag, as if it had been given.
func set(flags *pflag.FlagSet, flag *pflag.Flag, value *yaml.Node) error {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	separator, isMap := separatorOf(flag.Value)
	list, isList := flag.Value.(pflag.SliceValue)
	switch {
	case value.Kind == yaml.SequenceNode && isList:
		items, err := scalars(value.Content)
		if err != nil {
			return err
		}
		if err := list.Replace(items); err != nil {
			return err
		}
		flag.Changed = true
		return nil
	case value.Kind == yaml.SequenceNode:
		return errors.New("it has one value, not a list")
	case value.Kind == yaml.MappingNode && isMap:
		text, err := joinMap(value, flag.Value, separator)
		if err != nil || text == "" { // no key: the default
			return err
		}
		return flags.Set(flag.Name, text)
	case value.Kind == yaml.MappingNode && isList:
		return errors.New("it is a list, whose lines begin with -")
	case value.Kind == yaml.MappingNode:
		return errors.New("it has one value, not keys with values")
	}
	text, err := scalar(value)
	if err != nil {
		return err
	}
	return flags.Set(flag.Name, text)
}

// separatorOf returns what stands between a key and its value in a flag that has such pairs.
func separatorOf(value pflag.Value) (separator string, isMap bool) {
	switch value := value.(type) {
	case *cliflag.LangleSeparatedMapStringString:
		return "<", true
	case *cliflag.MapStringString:
		return "=", true
	default:
		return "=", value.Type() == "stringToString"
	}
}

// joinMap writes a mapping as the flag has it on the command line.
func joinMap(node *yaml.Node, flag pflag.Value, separator string) (string, error) {
	items, err := scalars(node.Content)
	if err != nil {
		return "", err
	}
	var pairs []string
	seen := map[string]bool{}
	for i := 0; i < len(items); i += 2 {
		if seen[items[i]] {
			return "", fmt.Errorf("it has %s twice", items[i])
		}
		seen[items[i]] = true
		if strings.Contains(items[i], separator) { // it would be a part of the value
			return "", fmt.Errorf("%q: a key has no %s", items[i], separator)
		}
		pairs = append(pairs, items[i]+separator+items[i+1])
	}
	if flag.Type() == "stringToString" && len(pairs) > 0 { // which is read as CSV, but not if it is one pair
		if text := strings.Join(pairs, ""); strings.ContainsAny(text, "\"\r\n") {
			return "", fmt.Errorf("%q: keys and values have neither quotation marks nor line breaks", text)
		}
		var text bytes.Buffer
		writer := csv.NewWriter(&text)
		err := writer.Write(pairs)
		writer.Flush()
		return strings.TrimSuffix(text.String(), "\n"), errors.Join(err, writer.Error())
	}
	for _, pair := range pairs {
		if strings.Contains(pair, ",") {
			return "", fmt.Errorf("%q: a value has no comma", pair)
		}
	}
	return strings.Join(pairs, ","), nil
}

func scalars(nodes []*yaml.Node) ([]string, error) {
	items := make([]string, 0, len(nodes))
	for _, node := range nodes {
		item, err := scalar(node)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}

// scalar returns the text of a single value.
func scalar(node *yaml.Node) (string, error) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	if node.Kind != yaml.ScalarNode {
		return "", errors.New("want a single value")
	}
	switch tag := node.ShortTag(); {
	case tag == "!!null":
		return "", errors.New(`it has no value: write one, "" for an empty one, or remove the key`)
	case tag == "!!binary", !strings.HasPrefix(tag, "!!"):
		return "", fmt.Errorf("it has the tag %s: write the value as text", tag)
	}
	return node.Value, nil
}
