// Package admission decides which Pods the node takes: it checks operating system, sysctls, AppArmor, node name, affinity,
// taints, host ports and resources, and rejects fields that the node does not support.
package admission
