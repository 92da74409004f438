// Package allocation stores across restarts of the kubelet which resources are allocated to each Pod, and which its
// containers were last given.
//
// Both are in files with upstream's names and format, so that a node can change its kubelet. The allocated resources must
// be known after a restart, since the spec of a Pod may have been changed meanwhile, which does not allocate anything.
// The actuated ones show a change that was under way. A file that cannot be read is discarded with a warning: then the
// Pods' statuses show what was allocated, and the runtime what is in effect.
package allocation
