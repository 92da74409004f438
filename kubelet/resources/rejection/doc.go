// Package rejection has the errors for which a node does not take a Pod: each is a reason of the Pod's status.
package rejection
