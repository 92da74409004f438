package explain

import (
	"reflect"

	"github.com/berth-dev/berth/internal/terminaltext"
)

// printable returns a copy of an explanation, or of a list of them, whose texts are harmless lines on a terminal: many are of others, as
// container logs, drivers' errors and reasons of Events.
func printable[T any](of T) T {
	copied := reflect.New(reflect.TypeFor[T]()).Elem()
	copyPrintable(copied, reflect.ValueOf(of))
	return copied.Interface().(T)
}

func copyPrintable(to, from reflect.Value) {
	to.Set(from)
	switch from.Kind() {
	case reflect.String:
		to.SetString(terminaltext.Line(from.String()))
	case reflect.Pointer:
		if !from.IsNil() {
			to.Set(reflect.New(from.Type().Elem()))
			copyPrintable(to.Elem(), from.Elem())
		}
	case reflect.Slice:
		if !from.IsNil() {
			to.Set(reflect.MakeSlice(from.Type(), from.Len(), from.Len()))
			for i := range from.Len() {
				copyPrintable(to.Index(i), from.Index(i))
			}
		}
	case reflect.Struct:
		for i := range from.NumField() {
			if from.Type().Field(i).IsExported() { // the others, as a time's, are copied as they are
				copyPrintable(to.Field(i), from.Field(i))
			}
		}
	}
}
