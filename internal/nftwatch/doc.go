// Package nftwatch notices that another program has deleted something in the machine's packet filter, or added rules to it, by the events of
// the kernel, and has it put right again. iptables with nf_tables causes them, too; iptables-legacy does not.
package nftwatch
