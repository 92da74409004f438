package page

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/evanw/esbuild/pkg/api"
)

// runScript runs a program of testdata, which drives the page's script, and compares what it prints.
func runScript(t *testing.T, name, updates string, want ...string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("node is not installed, which make page installs with npm")
	}
	program := filepath.Join(t.TempDir(), name)
	result := api.Build(api.BuildOptions{
		EntryPoints: []string{filepath.Join("testdata", name)}, Bundle: true, Platform: api.PlatformNode, Outfile: program, Write: true,
	})
	if len(result.Errors) > 0 {
		t.Fatal(result.Errors)
	}
	out, err := exec.CommandContext(t.Context(), node, program, updates).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.TrimSuffix(string(out), "\n"); got != strings.Join(want, "\n") {
		t.Errorf("after each update the page has:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

// TestItemsMoveBetweenLists has a Pod become ready, fail and become ready again.
func TestItemsMoveBetweenLists(t *testing.T) {
	runScript(t, "lists.js", `[
		{"items": {"a": "a=waits", "b": "b=waits"}, "order": {"stuck": ["a", "b"], "recent": []}},
		{"items": {"a": "a=ready"}, "order": {"recent": ["a"], "stuck": ["b"]}},
		{"items": {"a": "a=failed"}, "order": {"recent": [], "stuck": ["a", "b"]}},
		{"order": {"stuck": ["b"]}}
	]`,
		"stuck: a waits, b waits; recent: ",
		"stuck: b waits; recent: a ready",
		"stuck: a failed, b waits; recent: ",
		"stuck: b waits; recent: ",
	)
}

// TestAPageIsLiveAgain shows the Pod of a StatefulSet, which is deleted and created again with the same name.
func TestAPageIsLiveAgain(t *testing.T) {
	runScript(t, "live.js", `[{"blocks": {"object": "first"}}, {"gone": "deleted"}, {"blocks": {"object": "second"}}]`,
		"live on: live", "live off: deleted", "live on: live")
}
