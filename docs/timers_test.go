// Package docs_test keeps the documents true to the code.
package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// timerCalls are the calls that make something wait for a moment: of package time, of an injected clock, and of
// the libraries that hide one of those. A deadline on a single call (context.WithTimeout) waits for nothing.
var timerCalls = []string{
	"NewTimer", "NewTicker", "AfterFunc", "After", "Tick", "Sleep", "WaitWhile", "AddAfter",
	"Until", "UntilWithContext", "JitterUntil", "JitterUntilWithContext", "NonSlidingUntil", "BackoffUntil",
	"TimerfdCreate", "PollUntilContextCancel", "PollUntilContextTimeout", "PollImmediateUntil", "ExponentialBackoffWithContext",
}

// harnesses measure and judge Berth and are no part of it.
var harnesses = []string{"../bench", "../conformance", "../test"}

// row is a line of the table in timers.md: | `file` | `function` | period | reason |.
var row = regexp.MustCompile("^\\| `([^`]+)` \\| `([^`]+)` \\| ([^|]+) \\| ([^|]+) \\|$")

func TestEveryTimerIsDocumented(t *testing.T) {
	documented := readTable(t)
	found := findTimers(t, "..")
	for _, timer := range found {
		if !slices.Contains(documented, timer) {
			t.Errorf("%s has a timer that docs/timers.md does not list", timer)
		}
	}
	for _, timer := range documented {
		if !slices.Contains(found, timer) {
			t.Errorf("docs/timers.md lists %s, which has no timer", timer)
		}
	}
}

func TestTheTimerFinderFinds(t *testing.T) {
	dir := t.TempDir()
	source := "package x\nimport \"time\"\nfunc (w *worker) run() { <-time.After(1) }\nfunc quiet(a, b time.Time) bool { return a.After(b) }\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x.go"), []byte(source), 0o600))
	require.Equal(t, []string{"x.go worker.run"}, findTimers(t, dir))
}

func readTable(t *testing.T) []string {
	data, err := os.ReadFile("timers.md")
	require.NoError(t, err)
	var timers []string
	for line := range strings.Lines(string(data)) {
		match := row.FindStringSubmatch(strings.TrimSpace(line))
		if match == nil {
			continue
		}
		require.NotEmpty(t, strings.TrimSpace(match[3]), "%s: period", match[1])
		require.NotEmpty(t, strings.TrimSpace(match[4]), "%s: reason", match[1])
		timers = append(timers, match[1]+" "+match[2])
	}
	require.NotEmpty(t, timers, "timers.md has no table")
	return timers
}

// findTimers lists "file function" of every function of non-test code that makes a timer.
func findTimers(t *testing.T, root string) []string {
	var timers []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && (strings.HasPrefix(entry.Name(), ".") || slices.Contains(harnesses, path)) {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			function, ok := decl.(*ast.FuncDecl)
			if ok && makesTimer(function) {
				timers = append(timers, name+" "+functionName(function))
			}
		}
		return nil
	})
	require.NoError(t, err)
	slices.Sort(timers)
	return slices.Compact(timers)
}

func functionName(function *ast.FuncDecl) string {
	if function.Recv == nil {
		return function.Name.Name
	}
	receiver := function.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}
	if index, ok := receiver.(*ast.IndexExpr); ok {
		receiver = index.X
	}
	if index, ok := receiver.(*ast.IndexListExpr); ok {
		receiver = index.X
	}
	if name, ok := receiver.(*ast.Ident); ok {
		return name.Name + "." + function.Name.Name
	}
	return function.Name.Name
}

func makesTimer(function *ast.FuncDecl) bool {
	found := false
	ast.Inspect(function, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains(timerCalls, selector.Sel.Name) {
			return true
		}
		found = found || waits(selector)
		return true
	})
	return found
}

// waits distinguishes timers from what only shares their names: After compares two times and Until measures one, unless
// they are a clock's or a package's.
func waits(selector *ast.SelectorExpr) bool {
	name := ""
	switch x := selector.X.(type) {
	case *ast.Ident:
		name = x.Name
	case *ast.SelectorExpr:
		name = x.Sel.Name
	}
	switch selector.Sel.Name {
	case "After":
		return name == "time" || strings.EqualFold(name, "clock")
	case "Until":
		return name == "wait"
	case "AfterFunc":
		return name != "context" // called when a context ends, not at a moment
	}
	return true
}
