// Package suite runs upstream's suite with ginkgo, reads its report, and says in words what passed, what failed and
// what of the list of specs that must pass did not run.
package suite
