// Package health reports the health of one CSI driver's volumes, as the driver's controller service knows it, as events of the
// claims that they are bound to, with the reasons of KEP-1432: VolumeConditionAbnormal, and VolumeConditionNormal when the
// volume has recovered. The kubelet reports what the driver's node service knows, on Pods.
//
// CSI has no event for a change of health, so the driver is asked periodically, and only a driver that has the capability.
package health
