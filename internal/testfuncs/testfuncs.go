// Package testfuncs reads from test files which tests there are, for the tests that keep lists of tests true.
package testfuncs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// List returns the names of the functions in the test files of a directory that begin with one of the prefixes, whatever
// their build constraints. It is an error if there are no test files.
func List(dir string, prefixes ...string) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, fmt.Errorf("find tests: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("find tests: there are none in %q", dir)
	}
	names := make(map[string]bool)
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("find tests: %w", err)
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if ok && f.Recv == nil && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(f.Name.Name, p) }) {
				names[f.Name.Name] = true
			}
		}
	}
	return names, nil
}
