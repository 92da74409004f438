// Package isolate runs a cluster in namespaces of its own, so that nothing of it can collide with the machine or with another
// cluster, and the kernel ends all of it with one process.
//
// Two processes of the program berth-isolate do that. The outer one, [Config.Launch], stays in the machine's namespaces: it
// connects the cluster to the machine's network, forwards signals and returns the exit code. The inner one, [Config.RunInit], is the first
// process of the cluster's PID namespace: it prepares the mounts, starts `berth up` and waits for orphaned processes. When
// either ends, however it ends, the other ends all processes of the cluster and removes what the kernel does not: cgroups,
// loop devices and the run directory. If both are killed at once, the kernel still ends the processes, mounts, namespaces and
// network interfaces, and berth doctor finds the rest.
//
// The cluster's network namespace has one link to the machine, a veth pair with an address at each end. The machine
// masquerades what comes from it by a table of nftables that belongs to a socket of the outer process, so that the kernel
// removes it with that process. A name server that the machine reaches on loopback is relayed to the same address in the
// namespace.
//
// A user who is not root gets a user namespace, too, which the kernel lets own the others. It has no link to the machine: the API server's
// socket is inherited as always, and tests listen in the namespaces by ListenInside. That is enough for an API server alone; a node needs
// cgroups and the users of images.
package isolate
