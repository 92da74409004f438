// Package volumebinding is kube-scheduler's VolumeBinding plugin with one thing
// changed: how PreBind waits for the volumes of a Pod to be provisioned.
//
// Upstream checks once a second whether the claims are bound, which delays every
// Pod with a new claim. Here the informers' events end the wait. Every decision
// stays upstream's: which nodes fit, which volumes match, what is assumed and
// reverted, which events cause another attempt for a Pod. What needs upstream's
// private state (claims that get an existing volume, volumes of in-tree plugins) is
// passed on to upstream's own wait.
package volumebinding
