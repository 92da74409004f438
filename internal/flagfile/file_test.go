package flagfile

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	cliflag "k8s.io/component-base/cli/flag"
)

// values are variables of flags of every kind.
type values struct {
	text    string
	number  int
	yes     bool
	wait    time.Duration
	list    []string
	pairs   map[string]string
	limits  map[string]string
	periods map[string]string
}

func newFlags() (*pflag.FlagSet, *values) {
	var v values
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.StringVar(&v.text, "text", "default", "some text")
	flags.IntVar(&v.number, "number", 1, "a number;\nof something")
	flags.BoolVar(&v.yes, "yes", false, "a decision")
	flags.DurationVar(&v.wait, "wait", time.Minute, "a time")
	flags.StringSliceVar(&v.list, "list", nil, "a list")
	flags.StringToStringVar(&v.pairs, "pairs", nil, "pairs")
	flags.Var(cliflag.NewLangleSeparatedMapStringString(&v.limits), "limits", "limits")
	flags.Var(cliflag.NewMapStringString(&v.periods), "periods", "periods")
	return flags, &v
}

const full = `
text: "yes, this" # a comment
number: 7
yes: true
wait: 1h
list: [a, "b,c"]
pairs:
  cpu: 100m
  odd: "x=y,z"
limits: {memory.available: 100Mi, nodefs.available: 10%}
periods: memory.available=1m30s
`

func TestFileSetsFlagsOfEveryKind(t *testing.T) {
	flags, v := newFlags()
	file, err := parse("f", []byte(full))
	require.NoError(t, err)
	require.NoError(t, flags.Set("number", "8"), "as on the command line")
	lines, err := file.Apply(flags, Options{})
	require.NoError(t, err)
	want := values{
		"yes, this", 8, true, time.Hour, []string{"a", "b,c"}, map[string]string{"cpu": "100m", "odd": "x=y,z"},
		map[string]string{"memory.available": "100Mi", "nodefs.available": "10%"}, map[string]string{"memory.available": "1m30s"},
	}
	require.Equal(t, want, *v)
	require.Equal(t, map[string]int{"text": 2, "yes": 4, "wait": 5, "list": 6, "pairs": 7, "limits": 10, "periods": 11}, lines)
	flags.VisitAll(func(flag *pflag.Flag) { require.True(t, flag.Changed, flag.Name) })

	var out bytes.Buffer
	require.NoError(t, Write(&out, flags, []string{"yes"}, func(flag *pflag.Flag) string { return "from " + flag.Name }))
	require.Contains(t, out.String(), "number: 8 # from number\n")
	require.NotContains(t, out.String(), "yes: true")
	again, other := newFlags()
	file, err = parse("written", out.Bytes())
	require.NoError(t, err)
	_, err = file.Apply(again, Options{})
	require.NoError(t, err)
	other.yes = true // left out
	require.Equal(t, want, *other, "what is written says the same")
}

func TestErrorsNameTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"numbr: 1":                 "f:1: numbr: unknown key: did you mean number?",
		"\n\nsomething: 1":         "f:3: something: unknown key",
		"number: many":             `f:1: number: invalid argument "many" for "--number"`,
		"number: [1, 2]":           "f:1: number: it has one value, not a list",
		"number: {a: 1}":           "f:1: number: it has one value",
		"list: {a: 1}":             "f:1: list: it is a list",
		"list: [[a]]":              "f:1: list: want a single value",
		"text:":                    "f:1: text: it has no value",
		"text: !!binary gA==":      "f:1: text: it has the tag !!binary: write the value as text",
		"pairs: {!env a: 1}":       "f:1: pairs: it has the tag !env",
		"yes: true\nno: 1\nyes: 1": "f:3: yes stands in line 1, too",
		"pairs: {a: 1, a: 2}":      "f:1: pairs: it has a twice",
		"limits: {a: '1,b<2'}":     "a value has no comma",
		"- a":                      "f:1: want keys with values",
		"text: [":                  "f: line 1:",
		"text: a\n---\ntext: b":    "f: it has a second document",
		"reset: true":              "f:1: reset: it may not be in the file: do not",
	} {
		flags, _ := newFlags()
		flags.Bool("reset", false, "")
		file, err := parse("f", []byte(text))
		if err == nil {
			_, err = file.Apply(flags, Options{Refused: map[string]string{"reset": "do not"}})
		}
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "\n", text)
	}
}

func TestEmptyFilesAndAliases(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "null\n", "pairs: {}\n"} {
		flags, v := newFlags()
		file, err := parse("f", []byte(text))
		require.NoError(t, err, text)
		_, err = file.Apply(flags, Options{})
		require.NoError(t, err, text)
		require.Equal(t, "default", v.text)
	}
	flags, v := newFlags()
	file, err := parse("f", []byte("text: &t hello\nlist: [*t]\n"))
	require.NoError(t, err)
	_, err = file.Apply(flags, Options{})
	require.NoError(t, err)
	require.Equal(t, []string{"hello"}, v.list)
}

func TestTemplateSetsNothing(t *testing.T) {
	flags, _ := newFlags()
	var out bytes.Buffer
	require.NoError(t, WriteTemplate(&out, flags, []string{"text"}))
	require.Contains(t, out.String(), "\n# a number;\n# of something\n#number: 1\n")
	path := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(path, out.Bytes(), 0o600))
	file, err := Read(path)
	require.NoError(t, err)
	require.Empty(t, file.entries)
}
