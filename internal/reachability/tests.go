package reachability

import (
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/tools/go/ssa"
)

// TestCalls returns the names of the production functions that a test calls or refers to, itself or through other functions
// of test files and of packages that only tests import. It reports whether there is such a test.
func (m *Module) TestCalls(dir, name string) (calls []string, found bool) {
	for _, pkg := range m.tests {
		f := pkg.Func(name)
		if f == nil || !strings.HasSuffix(m.file(f), "_test.go") || path.Dir(m.file(f)) != path.Clean(dir) {
			continue
		}
		w := testWalk{module: m, seen: map[*ssa.Function]bool{}, calls: map[string]bool{}}
		w.function(f)
		return slices.Sorted(maps.Keys(w.calls)), true
	}
	return nil, false
}

type testWalk struct {
	module *Module
	seen   map[*ssa.Function]bool
	calls  map[string]bool
}

func (w *testWalk) function(f *ssa.Function) {
	if w.seen[f] {
		return
	}
	w.seen[f] = true
	if !w.isTest(f) {
		if name := w.module.name(f); name != "" {
			w.calls[name] = true
		}
		return
	}
	for _, block := range f.Blocks {
		for _, instruction := range block.Instrs {
			for _, operand := range instruction.Operands(nil) {
				if callee, ok := (*operand).(*ssa.Function); ok {
					w.function(callee)
				}
			}
		}
	}
}

// isTest reports whether a function belongs to a test: by its file, by its package, or as a wrapper.
func (w *testWalk) isTest(f *ssa.Function) bool {
	if f.Synthetic != "" && f.Origin() == nil && f.Name() != "init" {
		return true
	}
	if strings.HasSuffix(w.module.file(f), "_test.go") {
		return true
	}
	if origin := f.Origin(); origin != nil {
		f = origin
	}
	return f.Pkg != nil && w.module.owns(f.Pkg.Pkg.Path()) && !w.module.production[f.Pkg.Pkg.Path()]
}
