#!/bin/sh
# usage: hack/netns.sh COMMAND [ARGUMENT...]
# Runs the command in a network namespace of its own, which ends with it: a machine with one network interface, and default routes
# behind which there is no response. Clusters there do not meet those of the machine's network, where only one may have kube-proxy.
set -eu
exec unshare --net sh -eu -c '
	ip link set lo up
	ip link add uplink type veth peer name nowhere
	ip address add 172.31.250.2/24 dev uplink
	ip link set nowhere up
	ip link set uplink up
	ip neighbour add 172.31.250.1 lladdr 02:00:00:00:00:01 dev uplink nud permanent
	ip route add default via 172.31.250.1
	if [ "$(cat /proc/sys/net/ipv6/conf/uplink/disable_ipv6 2>/dev/null)" = 0 ]; then
		ip address add fd31:250::2/64 dev uplink nodad
		ip neighbour add fd31:250::1 lladdr 02:00:00:00:00:01 dev uplink nud permanent
		ip -6 route add default via fd31:250::1
	fi
	exec "$@"' sh "$@"
