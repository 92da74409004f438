// Command bench measures Berth beside the software that it stands in for, and writes docs/benchmarks.md with its plots.
//
//	go run .                 measures everything
//	go run . reconcile pod   measures these
//	go run . -report         writes the report anew from the data
package main
