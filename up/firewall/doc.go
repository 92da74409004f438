// Package firewall lets the packets of a cluster's Pods pass a firewall of the machine that drops what no rule accepts, as Docker and
// ufw set it up for packets that the machine forwards. Packets between Pods and to Services are among these.
//
// Only a rule in the same chain can prevent that, so the rules are in the table filter of iptables: behind all others, so that
// what a rule of the user drops stays dropped, but before one that drops everything. What is in tables of nftables that iptables
// does not know cannot be changed so: see `berth doctor`.
package firewall
