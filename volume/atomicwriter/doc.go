// Package atomicwriter writes the files of a volume so that a reader sees either all of the old ones or all of the
// new ones.
//
// The layout is that of Kubernetes' kubelet, which users' programs watch:
//
//	DIR/..2026_11_20_20_00_00.123456789   one generation of the files
//	DIR/..data                            a link to the current generation, replaced by rename
//	DIR/name                              a link to ..data/name, for each first part of a file's path
package atomicwriter
