// Package token manages the service account tokens of this node's Pods: each is requested once, bound to its Pod,
// renewed well before it expires, and dropped with the Pod.
package token
