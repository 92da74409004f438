// Package nftwatch notices that another program has deleted something in the machine's packet filter, by the events of the kernel, and
// has it made again. iptables with nf_tables causes them, too; iptables-legacy does not.
package nftwatch
