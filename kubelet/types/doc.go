// Package types has the words in which sources of Pods speak to the node agent: updates, their operations, and what
// of a node is reserved.
package types
