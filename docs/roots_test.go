package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// uncontained are the goroutines that need no root, by directory or file, with the reason.
var uncontained = map[string]string{
	"up/supervisor":     "berth-supervisor is small and handles no objects; the kernel ends its children with it, and Pods run on",
	"internal/signals":  "it only waits for signals; a panic there ends the program, as a signal does",
	"internal/filelock": "it only waits for a lock of the kernel",
	"internal/contain":  "it is what contains the others",

	"up/isolate/launch.go": "it waits for the cluster's end; the relays, which handle what others send, are contained",
	"up/isolate/init.go":   "without these two the cluster cannot go on: the kernel ends it, and the next start begins anew",

	"containers/shim/guard": "it is what contains the goroutines of the shim",
}

// notNode are directories whose programs run only in tests, or are those of Pods.
var notNode = []string{
	"bench", "conformance", "vm", "images", "examples", "test", "hack", "bin", "docs",
	"volume/testsuite", "volume/csi/fake", "kubelet/cri/fake", "internal/testnet", "internal/testproc", "internal/testlog", "internal/faulttest",
	"packaging",
}

// TestEveryGoroutineContainsPanics fails for a go statement, a call of a Go method, or a server, of any module, that has no root in a
// package contain, or guard in the shim: a panic there would end the process.
func TestEveryGoroutineContainsPanics(t *testing.T) {
	roots := checkNodeSources(t, checkRoots, "begin it with contain.Do, Func, Guard, Loop or Recover")
	require.Greater(t, roots, 100, "the test finds too few goroutines")
}

// checkNodeSources fails for each problem in a source file of the programs of a node in which a panic has to be contained, and returns
// how much check has found in all.
func checkNodeSources(t *testing.T, check func(t *testing.T, path string, source []byte) (found int, problems []string), remedy string) (all int) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(filepath.ToSlash(path), "../")
		switch {
		case entry.IsDir() && (slices.Contains(notNode, rel) || strings.HasPrefix(entry.Name(), ".") && path != ".." || uncontained[rel] != ""):
			return filepath.SkipDir
		case strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") && uncontained[rel] == "":
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found, problems := check(t, path, source)
			all += found
			for _, problem := range problems {
				t.Errorf("%s: %s", problem, remedy)
			}
		}
		return nil
	})
	require.NoError(t, err)
	return all
}

// TestCheckRoots covers each form.
func TestCheckRoots(t *testing.T) {
	source := `package p
func f() {
	go func() { work() }()                                       // bad
	go work()                                                    // bad
	go func() { defer contain.Recover("s", ""); work() }()
	go func() { ended <- contain.Do("s", "", work) }()
	group.Go(work)                                               // bad
	group.Go(func() error { return work() })                     // bad
	group.Go(contain.Func("s", "", work))
	group.Go(func() error { err := contain.Do("s", "", work); return err })
	go contained("s", work)()
	_ = grpc.NewServer()                                         // bad
	_ = grpc.NewServer(contain.ServerOptions("s")...)
	_ = grpc.NewServer(append(contain.ServerOptions("s"), x)...)
	_ = &http.Server{Handler: h}                                 // bad
	_ = &http.Server{Handler: contain.Handler("s", h)}
}`
	found, problems := checkRoots(t, "p.go", []byte(source))
	require.Equal(t, 14, found)
	require.Len(t, problems, 6, "%v", problems)
}

// checkRoots returns the number of goroutines and servers of a file, and the places of those without a root.
func checkRoots(t *testing.T, path string, source []byte) (found int, problems []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, 0)
	require.NoError(t, err)
	check := func(node ast.Node, contained bool) {
		found++
		if !contained {
			problems = append(problems, set.Position(node.Pos()).String())
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.GoStmt:
			check(node, contains(node.Call.Fun))
		case *ast.CallExpr:
			selector, ok := node.Fun.(*ast.SelectorExpr)
			switch {
			case ok && selector.Sel.Name == "Go" && len(node.Args) == 1:
				check(node, contains(node.Args[0]))
			case ok && selector.Sel.Name == "NewServer" && isPackage(selector.X, "ttrpc"):
				check(node, contains(file)) // its interceptor is a variable
			case ok && selector.Sel.Name == "NewServer" && isPackage(selector.X, "grpc"):
				check(node, len(node.Args) > 0 && contains(node.Args[0]))
			}
		case *ast.CompositeLit:
			selector, ok := node.Type.(*ast.SelectorExpr)
			if ok && selector.Sel.Name == "Server" && isPackage(selector.X, "http") {
				check(node, contains(node))
			}
		}
		return true
	})
	return found, problems
}

// contains reports whether the expression calls a package contain or guard, or up/isolate's own function.
func contains(expr ast.Node) bool {
	yes := false
	ast.Inspect(expr, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.SelectorExpr:
			yes = yes || isPackage(node.X, "contain") || isPackage(node.X, "guard")
		case *ast.CallExpr:
			called, ok := node.Fun.(*ast.Ident)
			yes = yes || ok && called.Name == "contained"
		}
		return !yes
	})
	return yes
}

func isPackage(expr ast.Expr, name string) bool {
	ident, ok := expr.(*ast.Ident)
	return ok && ident.Name == name
}
