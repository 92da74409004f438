package reachability

import (
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/packages"
	"golang.org/x/tools/go/ssa"
	"golang.org/x/tools/go/ssa/ssautil"
)

// Module is a module with its tests.
type Module struct {
	dir      string
	api      []string
	path     string
	fset     *token.FileSet
	packages []*ssa.Package // as commands are built from them, without tests
	tests    []*ssa.Package // with the test files
	// production are the paths of the commands, of the public API, and of what they import.
	production map[string]bool
	// imported are the interfaces of other modules and of the standard library, by the name of their first method.
	imported map[string][]*types.Interface
}

const mode = packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedTypes |
	packages.NeedTypesSizes | packages.NeedSyntax | packages.NeedTypesInfo | packages.NeedModule | packages.NeedExportFile

// Load reads the module in dir with its tests, built with the tags. api are the packages of its public API, by their paths
// in the module.
func Load(dir string, api []string, tags ...string) (*Module, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("load module: %w", err)
	}
	m := &Module{dir: dir, fset: token.NewFileSet(), imported: map[string][]*types.Interface{}, api: api,
		production: map[string]bool{}}
	loaded, err := packages.Load(&packages.Config{
		Mode: mode, Dir: dir, Fset: m.fset, Tests: true, BuildFlags: []string{"-tags=" + strings.Join(tags, ",")},
	}, "./...")
	if err != nil {
		return nil, fmt.Errorf("load module %s: %w", dir, err)
	}
	var failed error
	for _, pkg := range loaded {
		for _, problem := range pkg.Errors {
			failed = errors.Join(failed, problem)
		}
	}
	if failed != nil || len(loaded) == 0 {
		return nil, fmt.Errorf("load module %s: %d packages: %w", dir, len(loaded), failed)
	}
	program, built := ssautil.Packages(loaded, ssa.InstantiateGenerics)
	program.Build()
	for i, pkg := range loaded {
		if m.path == "" && pkg.Module != nil {
			m.path = pkg.Module.Path
		}
		switch {
		case strings.HasSuffix(pkg.PkgPath, ".test"): // the generated main function of a test
		case strings.Contains(pkg.ID, " ["):
			m.tests = append(m.tests, built[i])
		default:
			m.packages = append(m.packages, built[i])
		}
	}
	for _, pkg := range m.packages {
		if m.isRoot(pkg) {
			m.addProduction(pkg.Pkg)
		}
	}
	m.addImported(loaded)
	return m, nil
}

// isRoot reports whether a package is a command or of the public API.
func (m *Module) isRoot(pkg *ssa.Package) bool {
	return pkg.Pkg.Name() == "main" || slices.Contains(m.api, strings.TrimPrefix(pkg.Pkg.Path(), m.path+"/"))
}

func (m *Module) addProduction(pkg *types.Package) {
	if !m.owns(pkg.Path()) || m.production[pkg.Path()] {
		return
	}
	m.production[pkg.Path()] = true
	for _, imported := range pkg.Imports() {
		m.addProduction(imported)
	}
}

// addImported collects the interfaces that imported code can call methods through.
func (m *Module) addImported(loaded []*packages.Package) {
	seen := map[*types.Package]bool{}
	var add func(pkg *types.Package)
	add = func(pkg *types.Package) {
		if seen[pkg] {
			return
		}
		seen[pkg] = true
		for _, imported := range pkg.Imports() {
			add(imported)
		}
		if m.owns(pkg.Path()) {
			return
		}
		for _, name := range pkg.Scope().Names() {
			if object, ok := pkg.Scope().Lookup(name).(*types.TypeName); ok {
				m.addInterface(object.Type())
			}
		}
	}
	for _, pkg := range loaded {
		add(pkg.Types)
	}
	m.addInterface(types.Universe.Lookup("error").Type())
}

func (m *Module) addInterface(t types.Type) {
	if named, ok := types.Unalias(t).(*types.Named); ok && named.TypeParams().Len() > 0 {
		return
	}
	if face, ok := t.Underlying().(*types.Interface); ok && face.NumMethods() > 0 {
		first := face.Method(0).Name()
		if !slices.ContainsFunc(m.imported[first], func(known *types.Interface) bool { return types.Identical(known, face) }) {
			m.imported[first] = append(m.imported[first], face)
		}
	}
}

// owns reports whether a package belongs to the module.
func (m *Module) owns(path string) bool { return path == m.path || strings.HasPrefix(path, m.path+"/") }

// file is the path of a function's file in the module, or empty.
func (m *Module) file(f *ssa.Function) string {
	for f.Parent() != nil {
		f = f.Parent()
	}
	path, err := filepath.Rel(m.dir, m.fset.Position(f.Pos()).Filename)
	if err != nil || !f.Pos().IsValid() || strings.HasPrefix(path, "..") {
		return ""
	}
	return filepath.ToSlash(path)
}

// name is what a declared function of the module is called, without the module's path; empty for closures and wrappers.
func (m *Module) name(f *ssa.Function) string {
	if origin := f.Origin(); origin != nil {
		f = origin
	}
	object, ok := f.Object().(*types.Func)
	if !ok || object.Pkg() == nil || !m.owns(object.Pkg().Path()) {
		return ""
	}
	return strings.ReplaceAll(object.Origin().FullName(), m.path+"/", "")
}
