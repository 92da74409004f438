package explain

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fill sets each text of a value, and gives each list and pointer one element.
func fill(value reflect.Value, text string) {
	switch value.Kind() {
	case reflect.String:
		value.SetString(text)
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		fill(value.Elem(), text)
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		fill(value.Index(0), text)
	case reflect.Float64:
		value.SetFloat(10)
	case reflect.Struct:
		if value.Type() == reflect.TypeFor[time.Time]() {
			return
		}
		for i := range value.NumField() {
			if value.Type().Field(i).IsExported() {
				fill(value.Field(i), text)
			}
		}
	}
}

// TestNoTextReachesTheTerminalAsItIs has an escape sequence and a line break in each field, also in those that are added later.
func TestNoTextReachesTheTerminalAsItIs(t *testing.T) {
	var explanation Explanation
	fill(reflect.ValueOf(&explanation).Elem(), "\x1b[2Jtext\nof \u202eothers")
	before := explanation.Stages[0].Error
	for _, width := range []int{0, 60, 200} {
		style := Style{Width: width}
		var printed, list strings.Builder
		require.NoError(t, style.Print(&printed, &explanation))
		require.NoError(t, style.PrintList(&list, []*Explanation{&explanation}, time.Now()))
		for _, text := range []string{printed.String(), list.String()} {
			require.Contains(t, text, "[2Jtext of")
			require.NotContains(t, text, "\x1b")
			require.NotContains(t, text, "\u202e")
			require.NotContains(t, text, "text\nof")
		}
	}
	require.Equal(t, before, explanation.Stages[0].Error, "JSON has the texts as they are")
}
