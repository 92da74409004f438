// Package reachability finds the functions of a module that its commands and the users of its public API can reach, and
// those that its tests call.
//
// The analysis knows the bodies of the module's own functions and only the types of what they import. A function is
// reachable if a reachable function calls it or takes its value. A method is also reachable if its type becomes an
// interface value in a reachable function and either reachable code calls the method through an interface of the module,
// or the type implements an imported interface that has the method, through which imported code may call it. Unlike
// golang.org/x/tools' rapid type analysis it does not assume that reflection calls every exported method.
package reachability
