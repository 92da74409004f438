// Package types has the types of the 1.4 API for updates of Pods: sources, operations, and the reasons of a sync.
package types
