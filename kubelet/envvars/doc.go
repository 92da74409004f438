// Package envvars resolves the environment of a container, and expands $(VAR) in what a container runs with.
//
// [Build] is a function of its inputs: it asks for ConfigMaps and Secrets through [Objects] and reads nothing else
// but the files that a fileKeyRef names, each inside its volume.
package envvars
