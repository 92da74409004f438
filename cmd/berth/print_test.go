package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/imagestore"
)

// TestEveryOutputForScriptsSaysWhatItIs holds all -o json and -o yaml to one form: an object with apiVersion and kind, of a
// list with items, never null.
func TestEveryOutputForScriptsSaysWhatItIs(t *testing.T) {
	for name, test := range map[string]struct {
		value any
		want  string
		lists []string
	}{
		"images":        {newList(imagesVersion, "Image", []imagestore.Image(nil)), "images.berth.dev/v1alpha1 ImageList", []string{"items"}},
		"explain --all": {newList(explain.APIVersion, explain.Kind, []*explain.Explanation(nil)), "explain.berth.dev/v1alpha1 ExplanationList", []string{"items"}},
		"doctor":        {newReport([]diagnosis{}), "doctor.berth.dev/v1alpha1 Diagnosis", []string{"machine", "leftovers"}},
	} {
		for _, format := range []string{"json", "yaml"} {
			var out bytes.Buffer
			cmd := &cobra.Command{}
			cmd.SetOut(&out)
			require.NoError(t, printAs(cmd, format, test.value))
			requireTyped(t, name, out.Bytes(), test.want, test.lists...)
		}
	}
	root := newRoot()
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetArgs([]string{"version", "-o", "json"})
	require.NoError(t, root.Execute())
	requireTyped(t, "version", out.Bytes(), "version.berth.dev/v1alpha1 Version")
}

func requireTyped(t *testing.T, name string, text []byte, want string, lists ...string) {
	t.Helper()
	data, err := yaml.YAMLToJSON(text)
	require.NoError(t, err, name)
	var found map[string]any
	require.NoError(t, json.Unmarshal(data, &found), "%s: not an object: %s", name, text)
	require.Equal(t, want, found["apiVersion"].(string)+" "+found["kind"].(string), name)
	for _, list := range lists {
		require.IsType(t, []any{}, found[list], "%s: %s: %s", name, list, text)
	}
}
