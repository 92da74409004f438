// Package container holds the plain types of one Pod as the container runtime sees it.
//
// Whoever reads the runtime (package pleg) fills a [PodStatus] from CRI answers with [FromCRI]; whoever decides,
// reports or kills reads it. Nothing in here does I/O, and a PodStatus is never changed after it was handed on, so
// that it may be read from several goroutines.
package container
