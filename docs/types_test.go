package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A type with more than these needs a reason in its doc comment.
const (
	maxFields  = 15
	maxMethods = 30
)

// sizeReason is the word that marks the reason.
var sizeReason = regexp.MustCompile(`\bbecause\b`)

// largeType is what the test counts of a type.
type largeType struct {
	fields, methods int
	doc             string
}

// TestLargeTypesHaveReasons fails for a type over the bounds whose doc comment does not say why it is that large.
func TestLargeTypesHaveReasons(t *testing.T) {
	types := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil || !entry.IsDir():
			return err
		case strings.HasPrefix(entry.Name(), ".") && path != "..", entry.Name() == "testdata", path == "../bin":
			return filepath.SkipDir
		}
		found := readTypes(t, path)
		types += len(found)
		for _, problem := range sizeProblems(found) {
			t.Errorf("%s: %s", path, problem)
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, types, 1000, "the test finds too few types")
}

// TestSizeProblems covers structs, interfaces, embedded fields, blank names, methods in several files and types in tests.
func TestSizeProblems(t *testing.T) {
	dir := t.TempDir()
	methods := func(format, receiver string, count int) string {
		var lines strings.Builder
		for i := range count {
			fmt.Fprintf(&lines, format+"\n", receiver, i)
		}
		return lines.String()
	}
	const method = "func (%s) m%d() {}"
	for name, text := range map[string]string{
		"a.go": "package a\ntype wide struct { a, b, c, d, e, f, g, h, i, j, k, l, m, n int; string; *small }\n" +
			"type full struct { a, b, c, d, e, f, g, h, i, j, k, l, m, n int; string }\n" +
			"// reasoned is wide because it\n// is.\ntype reasoned struct { a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p int }\n" +
			"type (\n\t// inGroup is wide.\n\tinGroup struct { a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p int }\n)\n" +
			"type small struct{}\n" + methods(method, "s *small", 30),
		"b.go":      "package a\ntype busy[T any] int\n" + methods(method, "*busy[T]", 20),
		"c.go":      "package a\n" + strings.ReplaceAll(methods(method, "b busy[T]", 11), " m", " n"),
		"d.go":      "package a\ntype calls interface {\n" + methods("%sm%d()", "", 31) + "}\n",
		"e_test.go": "package a\ntype inTest struct { a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p int }\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	const reason = `; split it, or say why in its doc comment with the word "because"`
	require.Equal(t, []string{
		"type busy has 0 fields and 31 methods" + reason,
		"type calls has 0 fields and 31 methods" + reason,
		"type inGroup has 16 fields and 0 methods" + reason,
		"type wide has 16 fields and 0 methods" + reason,
	}, sizeProblems(readTypes(t, dir)))
}

// sizeProblems describes the types over the bounds that have no reason.
func sizeProblems(types map[string]*largeType) []string {
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(types)) {
		size := types[name]
		if (size.fields > maxFields || size.methods > maxMethods) && !sizeReason.MatchString(size.doc) {
			problems = append(problems, fmt.Sprintf(`type %s has %d fields and %d methods; split it, or say why in its doc comment with the word "because"`,
				name, size.fields, size.methods))
		}
	}
	return problems
}

// readTypes returns the types of the package in a directory by their names, those in tests excepted.
func readTypes(t *testing.T, dir string) map[string]*largeType {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	found := map[string]*largeType{}
	of := func(name string) *largeType {
		if found[name] == nil {
			found[name] = &largeType{}
		}
		return found[name]
	}
	methods := map[string]bool{} // an implementation for another system counts once
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, declaration := range file.Decls {
			switch declaration := declaration.(type) {
			case *ast.FuncDecl:
				receiver := receiverName(declaration)
				if name := receiver + "." + declaration.Name.Name; receiver != "" && !methods[name] {
					methods[name] = true
					of(receiver).methods++
				}
			case *ast.GenDecl:
				for _, spec := range declaration.Specs {
					if spec, ok := spec.(*ast.TypeSpec); ok {
						of(spec.Name.Name).measure(spec, declaration.Doc)
					}
				}
			}
		}
	}
	return found
}

// measure counts the fields of a struct type or the methods of an interface type. An embedded one counts as one.
func (l *largeType) measure(spec *ast.TypeSpec, groupDoc *ast.CommentGroup) {
	l.doc = spec.Doc.Text()
	if spec.Doc == nil {
		l.doc = groupDoc.Text()
	}
	count := func(list *ast.FieldList) (sum int) {
		for _, field := range list.List {
			sum += max(1, len(field.Names))
		}
		return sum
	}
	switch kind := spec.Type.(type) {
	case *ast.StructType:
		l.fields = count(kind.Fields)
	case *ast.InterfaceType:
		l.methods = count(kind.Methods)
	}
}

// receiverName returns the name of the type that a method belongs to; "" for a function.
func receiverName(function *ast.FuncDecl) string {
	if function.Recv == nil {
		return ""
	}
	kind := function.Recv.List[0].Type
	if pointer, ok := kind.(*ast.StarExpr); ok {
		kind = pointer.X
	}
	switch generic := kind.(type) {
	case *ast.IndexExpr:
		kind = generic.X
	case *ast.IndexListExpr:
		kind = generic.X
	}
	if name, ok := kind.(*ast.Ident); ok {
		return name.Name
	}
	return ""
}
