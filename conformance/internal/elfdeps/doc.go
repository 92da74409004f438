// Package elfdeps finds the shared libraries of a program inside a directory that holds unpacked packages.
package elfdeps
