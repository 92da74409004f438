package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// quietPackages and quietMethods do not panic with what the code of this repository gives them.
var (
	quietPackages = []string{"cmp", "context", "errors", "fmt", "maps", "slices", "strings", "sync", "sync/atomic", "time"}
	quietMethods  = []string{"Add", "After", "Before", "CompareAndSwap", "Err", "IsZero", "Load", "Now", "Signal", "Since", "Store", "Sub", "Wait"}
	quietBuiltins = []string{"append", "cap", "clear", "close", "copy", "delete", "len", "make", "max", "min", "new", "string"}
)

// TestLocksAreReleasedByPanics fails for a mutex that is unlocked by a statement instead of by defer although a function is called in
// between that may panic. A panic in one Pod's goroutine is recovered; a mutex that it leaves locked would stop all others.
func TestLocksAreReleasedByPanics(t *testing.T) {
	locks := checkNodeSources(t, checkLocks, "called while a mutex is locked: unlock it with defer, in a function of its own if need be")
	require.Greater(t, locks, 500, "the test finds too few locks")
}

// TestCheckLocks covers each form.
func TestCheckLocks(t *testing.T) {
	source := `package p
import "slices"
func f() {
	m.mu.Lock()
	defer m.mu.Unlock()
	work()
}
func g() {
	m.mu.Lock()
	n := len(m.x)
	m.later = func() { work() }
	go work()
	slices.Sort(m.x)
	m.mu.Unlock()
	m.mu.Lock()
	if n > 0 {
		work()                              // bad
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	work()
	m.a.RLock()
	m.b.Lock()
	m.field.Do()                            // bad twice
	m.b.Unlock()
	m.a.RUnlock()
}`
	found, problems := checkLocks(t, "p.go", []byte(source))
	require.Equal(t, 5, found)
	require.Equal(t, []string{"p.go:17:3: work", "p.go:25:2: m.field.Do", "p.go:25:2: m.field.Do"}, problems)
}

// checkLocks returns how often a file locks a mutex, and the calls that may panic before it is unlocked.
func checkLocks(t *testing.T, path string, source []byte) (found int, problems []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, 0)
	require.NoError(t, err)
	quiet := quietNames(t, file)
	ast.Inspect(file, func(node ast.Node) bool {
		statements := statementsOf(node)
		for i, statement := range statements {
			mutex, method := methodCall(statement)
			if method != "Lock" && method != "RLock" || mutex == "" {
				continue
			}
			found++
			for _, next := range statements[i+1:] {
				if unlocked, method := methodCall(next); unlocked == mutex && (method == "Unlock" || method == "RUnlock") {
					break
				}
				if deferred, ok := next.(*ast.DeferStmt); ok && exprText(deferred.Call.Fun) == mutex+".Unlock" || ok && exprText(deferred.Call.Fun) == mutex+".RUnlock" {
					break
				}
				for _, call := range callsOf(next) {
					if !quiet(call) {
						problems = append(problems, set.Position(call.Pos()).String()+": "+exprText(call.Fun))
					}
				}
			}
		}
		return true
	})
	return found, problems
}

func statementsOf(node ast.Node) []ast.Stmt {
	switch node := node.(type) {
	case *ast.BlockStmt:
		return node.List
	case *ast.CaseClause:
		return node.Body
	case *ast.CommClause:
		return node.Body
	}
	return nil
}

// methodCall returns the receiver and the method of a statement that only calls it.
func methodCall(statement ast.Stmt) (receiver, method string) {
	expr, ok := statement.(*ast.ExprStmt)
	if !ok {
		return "", ""
	}
	call, ok := expr.X.(*ast.CallExpr)
	if !ok {
		return "", ""
	}
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	return exprText(selector.X), selector.Sel.Name
}

// callsOf returns the calls that a statement makes itself, without those of functions that it only passes on or starts.
func callsOf(statement ast.Stmt) []*ast.CallExpr {
	var calls []*ast.CallExpr
	ast.Inspect(statement, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.FuncLit, *ast.GoStmt:
			return false
		case *ast.CallExpr:
			calls = append(calls, node)
		}
		return true
	})
	return calls
}

// quietNames returns a function that reports whether a call does not panic.
func quietNames(t *testing.T, file *ast.File) func(*ast.CallExpr) bool {
	t.Helper()
	var packages []string
	for _, one := range file.Imports {
		name, err := strconv.Unquote(one.Path.Value)
		require.NoError(t, err)
		if slices.Contains(quietPackages, name) {
			packages = append(packages, path.Base(name))
		}
	}
	locking := []string{"Lock", "Unlock", "RLock", "RUnlock"}
	return func(call *ast.CallExpr) bool {
		switch called := call.Fun.(type) {
		case *ast.Ident:
			return slices.Contains(quietBuiltins, called.Name)
		case *ast.SelectorExpr:
			name, ok := called.X.(*ast.Ident)
			return ok && slices.Contains(packages, name.Name) || slices.Contains(quietMethods, called.Sel.Name) || slices.Contains(locking, called.Sel.Name)
		}
		return false
	}
}

// exprText returns the text of a variable, a field or an element; any other expression is empty.
func exprText(expr ast.Expr) string {
	switch expr := expr.(type) {
	case *ast.Ident:
		return expr.Name
	case *ast.SelectorExpr:
		return exprText(expr.X) + "." + expr.Sel.Name
	case *ast.IndexExpr:
		return exprText(expr.X) + "[]"
	}
	return ""
}
