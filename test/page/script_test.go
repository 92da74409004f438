package page

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
)

// TestItemsMoveBetweenLists runs the part of the script that applies updates: a Pod becomes ready, fails and becomes ready again.
func TestItemsMoveBetweenLists(t *testing.T) {
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed, which make page installs with npm")
	}
	program := filepath.Join(t.TempDir(), "lists.js")
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{"testdata/lists.js"}, Bundle: true, Platform: api.PlatformNode, Outfile: program, Write: true,
	})
	if len(result.Errors) > 0 {
		t.Fatal(result.Errors)
	}
	updates := `[
		{"items": {"a": "a=waits", "b": "b=waits"}, "order": {"stuck": ["a", "b"], "recent": []}},
		{"items": {"a": "a=ready"}, "order": {"recent": ["a"], "stuck": ["b"]}},
		{"items": {"a": "a=failed"}, "order": {"recent": [], "stuck": ["a", "b"]}},
		{"order": {"stuck": ["b"]}}
	]`
	out, err := exec.CommandContext(t.Context(), node, program, updates).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want := []string{
		"stuck: a waits, b waits; recent: ",
		"stuck: b waits; recent: a ready",
		"stuck: a failed, b waits; recent: ",
		"stuck: b waits; recent: ",
	}
	if got := strings.TrimSuffix(string(out), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("after each update the lists have:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}
