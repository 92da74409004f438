package kubelet_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-dev/berth/kubelet"
	"github.com/berth-dev/berth/kubelet/container"
	crifake "github.com/berth-dev/berth/kubelet/cri/fake"
)

// TestEachDependencyIsUsedAndTested requires of each field of KubeletDeps that the package reads it and that a test sets it, so that a new
// field cannot be accepted and ignored.
func TestEachDependencyIsUsedAndTested(t *testing.T) {
	isTest := func(name string) bool { return strings.HasSuffix(name, "_test.go") }
	read, set := map[string]bool{}, map[string]bool{}
	for _, file := range sources(t, ".", func(name string) bool { return !isTest(name) && name != "deps.go" }) {
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"kubeDeps", "deps", "in", "injected"}, lastName(s.X)) {
				read[s.Sel.Name] = true
			}
			return true
		})
	}
	// The file of names that only have to compile sets all of them.
	tests := append(sources(t, ".", func(name string) bool { return isTest(name) && name != "api_test.go" }),
		sources(t, "../test/integration", func(name string) bool { return strings.HasPrefix(name, "embedded_") })...)
	for _, file := range tests {
		ast.Inspect(file, func(n ast.Node) bool {
			for _, name := range fieldsSet(n) {
				set[name] = true
			}
			return true
		})
	}
	for field := range reflect.TypeFor[kubelet.KubeletDeps]().Fields() {
		require.True(t, read[field.Name], "no code reads KubeletDeps.%s", field.Name)
		require.True(t, set[field.Name], "no test sets KubeletDeps.%s", field.Name)
	}
}

// fieldsSet returns the names of the fields of KubeletDeps that a node of a source file sets.
func fieldsSet(n ast.Node) (names []string) {
	switch n := n.(type) {
	case *ast.CompositeLit:
		if lastName(n.Type) != "KubeletDeps" {
			return nil
		}
		for _, element := range n.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				names = append(names, lastName(pair.Key))
			}
		}
	case *ast.AssignStmt:
		for _, left := range n.Lhs {
			if s, ok := left.(*ast.SelectorExpr); ok && lastName(s.X) == "deps" {
				names = append(names, s.Sel.Name)
			}
		}
	}
	return names
}

// lastName returns the last identifier of a selector, or the identifier itself.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// sources parses the Go files of a directory whose names are wanted.
func sources(t *testing.T, dir string, wanted func(name string) bool) (files []*ast.File) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != ".go" || !wanted(entry.Name()) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, entry.Name()), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	return files
}

// TestClients gives a Kubelet two clients of API servers, or one, or none that it may use.
func TestClients(t *testing.T) {
	own, external := fake.NewClientset(), fake.NewClientset()
	for name, c := range map[string]struct {
		own, external, want kubernetes.Interface
		standalone          bool
	}{
		"the node's own one comes first":      {own: own, external: external, want: own},
		"the external one stands in":          {external: external, want: external},
		"a standalone kubelet has no server":  {own: own, external: external, standalone: true},
		"without a client there is no server": {standalone: true},
	} {
		dir := t.TempDir()
		deps := &kubelet.KubeletDeps{
			DockerClient: crifake.New(clocktesting.NewFakePassiveClock(time.Now())), Recorder: record.NewFakeRecorder(10),
			Options: []kubelet.Option{kubelet.WithRootDir(filepath.Join(dir, "root"))},
		}
		deps.KubeClient, deps.ExternalKubeClient = c.own, c.external
		k, err := kubelet.NewMainKubelet(&kubeletconfig.KubeletConfiguration{PodLogsDir: filepath.Join(dir, "log")}, deps, c.standalone)
		require.NoError(t, err, name)
		if c.want != nil {
			require.Same(t, c.want, k.GetKubeClient(), name)
		} else {
			_, err := k.GetKubeClient().Discovery().ServerVersion()
			require.ErrorContains(t, err, "without an API server", name)
		}
		require.NoError(t, k.Close())
	}
}

// TestContainerRuntimeOptions has an option see the runtime that the Kubelet uses, once it is connected.
func TestContainerRuntimeOptions(t *testing.T) {
	dir := t.TempDir()
	var changed []container.Runtime
	deps := &kubelet.KubeletDeps{
		DockerClient: crifake.New(clocktesting.NewFakePassiveClock(time.Now())), Recorder: record.NewFakeRecorder(10),
		Options:                 []kubelet.Option{kubelet.WithRootDir(filepath.Join(dir, "root"))},
		ContainerRuntimeOptions: []container.Option{func(r container.Runtime) { changed = append(changed, r) }},
	}
	k, err := kubelet.NewMainKubelet(&kubeletconfig.KubeletConfiguration{PodLogsDir: filepath.Join(dir, "log")}, deps, true)
	require.NoError(t, err)
	require.Equal(t, []container.Runtime{k.GetRuntime()}, changed)
	require.NoError(t, k.Close())
}
