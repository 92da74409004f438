// Package volumebinding is kube-scheduler's VolumeBinding plugin with one thing
// changed: how PreBind waits for the volumes of a Pod to be provisioned.
//
// Upstream looks once a second whether the claims are bound, so a Pod with a new
// claim waits half a second on average, and a whole one at least, for nothing.
// Here the informers' events end the wait. Every decision stays upstream's: which
// nodes fit, which volumes match, what is assumed and reverted, which events make
// a Pod worth another try. What may be decided only with upstream's private state
// (claims that get a volume which exists already, volumes of in-tree plugins) is
// handed to upstream's own wait.
package volumebinding
