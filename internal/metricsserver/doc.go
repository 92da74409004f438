// Package metricsserver serves the metrics, the health and the readiness of a program's components over HTTP.
//
// [Registries] collects the metrics of components that are created anew when they fail. [Server] serves them.
package metricsserver
