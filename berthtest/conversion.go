package berthtest

import (
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// isConvertible reports whether one version of the kind is the hub of conversions and all others convert to it and from it, as
// the package conversion of controller-runtime defines. It knows those types by their methods only, so that this module does
// not depend on a version of controller-runtime.
func isConvertible(kinds *runtime.Scheme, kind schema.GroupKind) bool {
	hubs, spokes, others := 0, 0, 0
	for known := range kinds.AllKnownTypes() {
		if known.GroupKind() != kind {
			continue
		}
		object, err := kinds.New(known)
		if err != nil {
			return false
		}
		switch value := reflect.TypeOf(object); {
		case hasMethod(value, "Hub", 0, 0):
			hubs++
		case hasMethod(value, "ConvertTo", 1, 1) && hasMethod(value, "ConvertFrom", 1, 1):
			spokes++
		default:
			others++
		}
	}
	return hubs == 1 && spokes > 0 && others == 0
}

// hasMethod reports whether the type has a method with so many parameters and results.
func hasMethod(value reflect.Type, name string, parameters, results int) bool {
	method, found := value.MethodByName(name)
	return found && method.Type.NumIn() == parameters+1 && method.Type.NumOut() == results // the receiver is the first
}
