package flagfile

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	cliflag "k8s.io/component-base/cli/flag"
)

// Write writes the flags as a file that sets them to what they are. comment returns what stands behind the value of a flag; skip are
// flags to leave out.
func Write(w io.Writer, flags *pflag.FlagSet, skip []string, comment func(flag *pflag.Flag) string) error {
	root := &yaml.Node{Kind: yaml.MappingNode}
	var err error
	flags.VisitAll(func(flag *pflag.Flag) {
		if err != nil || flag.Hidden || slices.Contains(skip, flag.Name) {
			return
		}
		var value yaml.Node
		if err = value.Encode(valueOf(flags, flag)); err != nil {
			err = fmt.Errorf("write --%s: %w", flag.Name, err)
			return
		}
		key := &yaml.Node{Kind: yaml.ScalarNode, Value: flag.Name}
		if value.Kind == yaml.ScalarNode || len(value.Content) == 0 {
			value.LineComment = comment(flag)
		} else {
			key.LineComment = comment(flag)
		}
		root.Content = append(root.Content, key, &value)
	})
	if err != nil {
		return err
	}
	encoder := yaml.NewEncoder(w)
	encoder.SetIndent(2)
	if err := encoder.Encode(root); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return encoder.Close()
}

// valueOf returns the value of a flag as YAML has it.
func valueOf(flags *pflag.FlagSet, flag *pflag.Flag) any {
	switch value := flag.Value.(type) {
	case *cliflag.LangleSeparatedMapStringString:
		return *value.Map
	case *cliflag.MapStringString:
		return *value.Map
	case pflag.SliceValue:
		return value.GetSlice()
	}
	if flag.Value.Type() == "stringToString" {
		pairs, err := flags.GetStringToString(flag.Name)
		if err == nil {
			return pairs
		}
	}
	if typedScalars[flag.Value.Type()] {
		return &yaml.Node{Kind: yaml.ScalarNode, Value: flag.Value.String()} // a number or a boolean of YAML
	}
	return flag.Value.String()
}

// typedScalars are the types of flags whose values are not strings in YAML.
var typedScalars = map[string]bool{"bool": true, "int": true, "int32": true, "int64": true, "uint": true, "float32": true, "float64": true, "count": true}

// WriteTemplate writes a file in which every flag stands as a comment, with its description and its default: it changes nothing until a # is
// removed.
func WriteTemplate(w io.Writer, flags *pflag.FlagSet, skip []string) error {
	var err error
	flags.VisitAll(func(flag *pflag.Flag) {
		if err != nil || flag.Hidden || slices.Contains(skip, flag.Name) {
			return
		}
		_, usage := pflag.UnquoteUsage(flag)
		var one bytes.Buffer
		single := pflag.NewFlagSet("", pflag.ContinueOnError)
		single.AddFlag(flag)
		if err = Write(&one, single, nil, func(*pflag.Flag) string { return "" }); err != nil {
			return
		}
		text := "\n# " + strings.ReplaceAll(usage, "\n", "\n# ") + "\n#" + strings.ReplaceAll(strings.TrimRight(one.String(), "\n"), "\n", "\n#") + "\n"
		_, err = io.WriteString(w, text)
	})
	return err
}
