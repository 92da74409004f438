// Command bench measures Berth and the software that it replaces, and writes docs/benchmarks.md with its plots.
//
//	go run .                 measures everything
//	go run . reconcile pod   measures these
//	go run . -report         writes the report again from the data
package main
