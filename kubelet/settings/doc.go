// Package settings decides what becomes of each field of a KubeletConfiguration (kubelet.config.k8s.io/v1beta1).
//
// [SetDefaults] sets the defaults of Kubernetes. [Fields] is the table of all fields: what a value does, and which values this
// kubelet refuses or warns about, with the reason. [Check] applies the table, [Validate] the rules of Kubernetes, and [Convert]
// returns what a kubelet is started with. docs/kubelet.md is written from the table, and tests compare it with the types.
package settings
