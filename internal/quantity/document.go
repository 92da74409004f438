package quantity

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// maxDepth is that of decoders, which refuse what is nested deeper before they read any of it.
const maxDepth = 10000

var typeOfQuantity = reflect.TypeFor[resource.Quantity]()

// CheckDocument returns an error if a quantity of a YAML or JSON document of type T is one that Parse refuses: to decode it would take minutes. It
// names the field. Anything else that is wrong with the document is left to its decoder.
func CheckDocument[T any](document []byte) error {
	if trimmed := bytes.TrimSpace(document); len(trimmed) == 0 || trimmed[0] != '{' { // in JSON, a number is decoded as it is written
		converted, err := yaml.YAMLToJSON(document)
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		document = converted
	}
	decoder := json.NewDecoder(bytes.NewReader(document))
	decoder.UseNumber()
	w := walk{decoder: decoder}
	w.value(reflect.TypeFor[T](), "")
	return w.err
}

// walk reads a document in step with the type that it is decoded into. It sees each field that is repeated, too.
type walk struct {
	decoder *json.Decoder
	depth   int
	err     error
}

// value reads one value; it returns false at the end of what can be read. A nil type is one that has no quantities.
func (w *walk) value(of reflect.Type, path string) bool {
	for of != nil && of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	token, err := w.decoder.Token()
	if err != nil {
		return false
	}
	switch token := token.(type) {
	case json.Delim:
		return w.composite(token, of, path)
	case string:
		return w.check(token, of, path)
	case json.Number:
		return w.check(token.String(), of, path)
	}
	return true
}

// composite reads the members of an object or a list, whose beginning has been read.
func (w *walk) composite(begin json.Delim, of reflect.Type, path string) bool {
	if w.depth++; w.depth > maxDepth {
		return false
	}
	defer func() { w.depth-- }()
	if of == nil {
		path = "" // no quantity is below it
	}
	for w.decoder.More() {
		if begin == '[' {
			if !w.value(elementOf(of, reflect.Slice), path+"[]") {
				return false
			}
			continue
		}
		key, err := w.decoder.Token()
		if err != nil {
			return false
		}
		name, _ := key.(string)
		if !w.value(memberOf(of, name), strings.TrimPrefix(path+"."+name, ".")) {
			return false
		}
	}
	_, err := w.decoder.Token()
	return err == nil
}

func (w *walk) check(text string, of reflect.Type, path string) bool {
	if of != typeOfQuantity || !isTooLarge(strings.TrimSpace(text)) {
		return true
	}
	w.err = fmt.Errorf("%s: quantity %.80q: %w", path, text, resource.ErrFormatWrong)
	return false
}

func elementOf(of reflect.Type, kind reflect.Kind) reflect.Type {
	if of == nil || of.Kind() != kind {
		return nil
	}
	return of.Elem()
}

// memberOf returns the type of the member of that name, nil if there is none.
func memberOf(of reflect.Type, name string) reflect.Type {
	if of == nil || of.Kind() != reflect.Struct {
		return elementOf(of, reflect.Map)
	}
	for i := range of.NumField() {
		field := of.Field(i)
		tag, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if tag == name && tag != "" {
			return field.Type
		}
		if field.Anonymous && tag == "" {
			if found := memberOf(field.Type, name); found != nil {
				return found
			}
		}
	}
	return nil
}
