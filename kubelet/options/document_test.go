package options

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/berth-dev/berth/kubelet/settings"
)

var update = flag.Bool("update", false, "write docs/kubelet.md")

// document is the page of all fields and flags.
const document = "../../docs/kubelet.md"

// TestDocumentHasEachFieldAndFlag compares the tables of the document with the code; with -update it writes them.
func TestDocumentHasEachFieldAndFlag(t *testing.T) {
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), "## Fields\n")
	require.True(t, ok, "the document has no section Fields")
	_, after, ok := strings.Cut(rest, "\n## ")
	require.True(t, ok, "the document has no section behind Fields")
	_, last, ok := strings.Cut(after, "\n## ")
	require.True(t, ok, "the document has no section behind Flags")
	want := before + "## Fields\n\n" + fieldTable() + "\n## Flags without a field\n\n" + flagTable() + "\n## " + last
	if *update {
		require.NoError(t, os.WriteFile(document, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "run go test ./kubelet/options -update")
}

func fieldTable() string {
	var out strings.Builder
	out.WriteString("| field | flag | what becomes of it | what it does |\n| --- | --- | --- | --- |\n")
	for _, f := range settings.Fields() {
		name := ""
		if f.Flag != "" {
			name = "`--" + f.Flag + "`"
		}
		does := f.Does
		if f.Limit != "" {
			does += ". **" + map[bool]string{true: "Warned about", false: "Refused"}[f.Support == settings.Warned] + "**: " + f.Limit
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", f.Path, name, f.Support, does)
	}
	return out.String()
}

func flagTable() string {
	o, flags := &Options{}, newFlags()
	set, fields := o.newFlagSet(&flags, commandLineDefaults()), map[string]bool{}
	for _, f := range settings.Fields() {
		fields[f.Flag] = true
	}
	var out strings.Builder
	out.WriteString("| flag | what becomes of it | what it does |\n| --- | --- | --- |\n")
	set.VisitAll(func(f *pflag.Flag) {
		switch {
		case fields[f.Name]:
		case f.Deprecated != "":
			fmt.Fprintf(&out, "| `--%s` | %s | no effect: %s |\n", f.Name, settings.Warned, f.Deprecated)
		case f.Name == "housekeeping-interval":
			fmt.Fprintf(&out, "| `--%s` | %s | %s |\n", f.Name, settings.Moot, f.Usage)
		default:
			fmt.Fprintf(&out, "| `--%s` | %s | %s |\n", f.Name, settings.Honoured, f.Usage)
		}
	})
	return out.String()
}
