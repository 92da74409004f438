package reachability

import (
	"go/token"
	"go/types"
	"slices"

	"golang.org/x/tools/go/ssa"
)

// Production returns the names of the functions that the module's commands can reach, or users of the exported names of its
// public API. A name looks like "volume/csi.New" or "(*volume/csi.Plugin).Start".
func (m *Module) Production() map[string]bool {
	w := &walk{module: m, functions: map[*ssa.Function]bool{}, names: map[string]bool{}, values: map[types.Type]bool{}}
	for _, pkg := range m.packages {
		if m.production[pkg.Pkg.Path()] {
			w.function(pkg.Func("init"))
		}
		switch {
		case !m.isRoot(pkg):
		case pkg.Pkg.Name() == "main":
			w.function(pkg.Func("main"))
		default:
			w.addExported(pkg)
		}
	}
	return w.names
}

// call is a method called through an interface.
type call struct {
	face   *types.Interface
	method string
}

// walk collects what is reachable.
type walk struct {
	module    *Module
	functions map[*ssa.Function]bool
	names     map[string]bool
	calls     []call
	values    map[types.Type]bool // the types of interface values
	types     []types.Type
}

// addExported adds the exported functions of a package and the exported methods of its exported types.
func (w *walk) addExported(pkg *ssa.Package) {
	for _, member := range pkg.Members {
		if !token.IsExported(member.Name()) {
			continue
		}
		switch member := member.(type) {
		case *ssa.Function:
			w.function(member)
		case *ssa.Type:
			named, ok := types.Unalias(member.Type()).(*types.Named)
			if !ok || types.IsInterface(named) {
				continue
			}
			for i := range named.NumMethods() {
				if method := named.Method(i); method.Exported() {
					w.function(pkg.Prog.FuncValue(method))
				}
			}
		}
	}
}

// function adds a function and all that it refers to.
func (w *walk) function(f *ssa.Function) {
	if f == nil || w.functions[f] {
		return
	}
	w.functions[f] = true
	if origin := f.Origin(); origin != nil {
		w.function(origin)
	}
	if name := w.module.name(f); name != "" && f.Synthetic == "" {
		w.names[name] = true
	}
	for _, block := range f.Blocks {
		for _, instruction := range block.Instrs {
			w.instruction(instruction)
		}
	}
}

func (w *walk) instruction(instruction ssa.Instruction) {
	for _, operand := range instruction.Operands(nil) {
		if f, ok := (*operand).(*ssa.Function); ok {
			w.function(f)
		}
	}
	switch instruction := instruction.(type) {
	case *ssa.MakeInterface:
		w.value(instruction.X.Type())
	case ssa.CallInstruction:
		if common := instruction.Common(); common.IsInvoke() {
			if face, ok := common.Value.Type().Underlying().(*types.Interface); ok {
				w.invoke(call{face, common.Method.Name()})
			}
		}
	}
}

// invoke adds the method of all types that become interface values.
func (w *walk) invoke(c call) {
	if slices.ContainsFunc(w.calls, func(known call) bool {
		return known.method == c.method && types.Identical(known.face, c.face)
	}) {
		return
	}
	w.calls = append(w.calls, c)
	for i := 0; i < len(w.types); i++ {
		if types.Implements(w.types[i], c.face) {
			w.method(w.types[i], c.method)
		}
	}
}

// value adds a type of which values become interface values, and the types of its parts, to which reflection leads.
func (w *walk) value(t types.Type) {
	if w.values[t] || types.IsInterface(t) {
		return
	}
	if _, isParameter := types.Unalias(t).(*types.TypeParam); isParameter {
		return
	}
	w.values[t] = true
	w.types = append(w.types, t)
	for i := 0; i < len(w.calls); i++ {
		if types.Implements(t, w.calls[i].face) {
			w.method(t, w.calls[i].method)
		}
	}
	methods := types.NewMethodSet(t)
	for i := range methods.Len() {
		for _, face := range w.module.imported[methods.At(i).Obj().Name()] {
			if types.Implements(t, face) {
				for j := range face.NumMethods() {
					w.method(t, face.Method(j).Name())
				}
			}
		}
	}
	w.parts(t)
}

func (w *walk) parts(t types.Type) {
	switch u := t.Underlying().(type) {
	case *types.Struct:
		for i := range u.NumFields() {
			if field := u.Field(i); field.Exported() {
				w.value(field.Type())
			}
		}
	case *types.Pointer:
		w.value(u.Elem())
	case *types.Slice:
		w.value(u.Elem())
	case *types.Array:
		w.value(u.Elem())
	case *types.Map:
		w.value(u.Key())
		w.value(u.Elem())
	}
}

// method adds a method of a type of the module.
func (w *walk) method(t types.Type, name string) {
	for _, pkg := range []*types.Package{nil, packageOf(t)} {
		selection := types.NewMethodSet(t).Lookup(pkg, name)
		if selection == nil {
			continue
		}
		w.function(w.module.packages[0].Prog.MethodValue(selection))
		return
	}
}

func packageOf(t types.Type) *types.Package {
	if pointer, ok := types.Unalias(t).(*types.Pointer); ok {
		t = pointer.Elem()
	}
	if named, ok := types.Unalias(t).(*types.Named); ok {
		return named.Obj().Pkg()
	}
	return nil
}
