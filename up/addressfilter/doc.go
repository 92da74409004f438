// Package addressfilter keeps Pods on a bridge to their own addresses: a frame with another hardware or IP address as its
// source is dropped where it leaves the Pod, and so is an ARP message that claims another address. A Pod can then neither
// take the connections of another Pod nor send in its name.
//
// The rules are one nftables table for each bridge, which [Table.Install] writes once. They decide by sets of the addresses of
// each port; the CNI plugin adds the port of a Pod to them before the Pod's first process starts. Ports that are in no set,
// such as those that users add to the bridge, are not restricted.
//
// A second table drops what comes from outside of the machine to its loopback addresses. The kernel does that itself unless
// the setting route_localnet is on, which the CNI plugin portmap turns on.
package addressfilter
