// Package iscsi is the volume plugin for disks that a server offers by iSCSI, in a Pod or a PersistentVolume.
//
// The node needs open-iscsi: the program iscsiadm makes and ends sessions, and iscsid keeps them. What there is of sessions and disks is read
// from the kernel's files in /sys. With multipath-tools, a disk that is reached by several portals is used through its multipath device.
//
// # On disk
//
// Below PLUGIN, which is plugins/kubernetes.io/iscsi of the kubelet's directory, with the names of Kubernetes' kubelet, so that each can take
// over from the other:
//
//	iface-INTERFACE/PORTAL-IQN-lun-LUN                    the disk's file system is mounted here, once for all Pods
//	volumeDevices/iface-INTERFACE/PORTAL-IQN-lun-LUN/UID  the pin of a Pod that uses the disk as a device (package blockpin)
//	records/HASH.json                                     what Unstage has to undo; it is Berth's own
//
// # Sessions
//
// All disks of a target share its sessions. Unstage removes the disk from the kernel, and ends the sessions of its target with the last disk
// of the target; one that was there before the kubelet needed it stays. A volume names its portals, so no discovery is made, which is why the
// credentials for it (chapAuthDiscovery) are not needed.
package iscsi
