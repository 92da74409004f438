// Package podutil has the small functions about a Pod that many packages need: which containers it has, whether it is
// ready, has ended, or is static. All functions only read the Pod.
package podutil
