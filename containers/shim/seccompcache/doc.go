// Package seccompcache lets the processes of containers load a seccomp profile that another has compiled.
//
// runc's library compiles a container's profile in the first process of the container, and again in each exec: libseccomp turns some
// hundred rules into a filter, which takes more time than all else that such a process does. What comes out depends on nothing but the
// calls of libseccomp, its version and what it finds the kernel to support.
//
// So this package stands between runc's library and libseccomp (the linker's option --wrap). The shim records the calls and the filter for
// a profile once, without loading it, and keeps both in a file ([Cache]). A process of a container gets the path of that file as its own
// name, which runc's library takes from os.Args ([Use]), reads it before it enters any namespace, and checks it. If it then makes exactly
// the same calls it gets the same filter; if not, or without such a file, libseccomp does all as ever. What runc's library does to the
// filter after that (the part for unknown system calls, loading it, notifications) stays its own.
package seccompcache
