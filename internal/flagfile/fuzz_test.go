package flagfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// FuzzFile applies an arbitrary file: an error names the file, and what is applied are flags, each of which can be set to what it has then.
func FuzzFile(f *testing.F) {
	f.Add(full)
	f.Add("a: &x [*x]\ntext: *x\n<<: {b: c}\n")
	f.Add("pairs: {\"a=b\": c}\nlimits: {? [x] : y}\nlist: !!binary x\n")
	f.Add("---\n...\n---\ntext: 1e999\n")
	f.Fuzz(func(t *testing.T, content string) {
		path := filepath.Join(t.TempDir(), "berth.yaml")
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		file, err := Read(path)
		if err != nil {
			require.ErrorContains(t, err, path)
			return
		}
		flags, _ := newFlags()
		lines, err := file.Apply(flags, Options{})
		if err != nil {
			require.ErrorContains(t, err, path)
		}
		for name, line := range lines {
			require.NotNil(t, flags.Lookup(name))
			require.Positive(t, line)
		}
		if _, exists, err := file.Scalar("text"); exists && err != nil {
			require.ErrorContains(t, err, path)
		}
	})
}

// FuzzPairs applies a file with an arbitrary pair: the flags that have pairs have this one then, or it is refused.
func FuzzPairs(f *testing.F) {
	f.Add("cpu", "100m", "memory")
	f.Add("a=b", "c,d", "x<y")
	f.Add("k", "\"quoted\"", "=")
	f.Add(" ", "line\nbreak", "")
	f.Fuzz(func(t *testing.T, key, value, other string) {
		want := map[string]string{key: value}
		if other != "" {
			want[other] = value
		}
		for _, name := range []string{"pairs", "limits", "periods"} {
			data, err := yaml.Marshal(map[string]any{name: want})
			if err != nil {
				return
			}
			path := filepath.Join(t.TempDir(), "berth.yaml")
			require.NoError(t, os.WriteFile(path, data, 0o600))
			file, err := Read(path)
			if err != nil {
				continue
			}
			flags, v := newFlags()
			if _, err := file.Apply(flags, Options{}); err != nil {
				require.ErrorContains(t, err, name)
				continue
			}
			have := map[string]map[string]string{"pairs": v.pairs, "limits": v.limits, "periods": v.periods}[name]
			require.Equal(t, trimmed(want), trimmed(have), "%s", data)
		}
	})
}

// trimmed returns the pairs without the space around their parts, which flags do not keep.
func trimmed(pairs map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range pairs {
		out[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	return out
}
