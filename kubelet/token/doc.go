// Package token is the service-account tokens of the Pods of this node: asked for once, bound to their Pod, renewed
// by a timer well before they expire, and forgotten with the Pod.
package token
