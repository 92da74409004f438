// Package envvars resolves the environment of a container and expands $(VAR) references.
//
// [Build] depends only on its inputs: it reads ConfigMaps and Secrets through [Objects], and no files but those that a
// fileKeyRef names, each inside its volume.
package envvars
