// Package report turns the stored data of benchmarks into docs/benchmarks.md and its plots. It computes everything from
// the data, so the same data always give the same report.
package report
