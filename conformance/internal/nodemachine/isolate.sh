#!/bin/sh
# Runs machine.sh on this machine, which it cannot change: in namespaces of its own for mounts, network, processes, host
# name and cgroups, on an overlay of the root file system. It is for machines without systemd. Run as root.
#
#   isolate.sh SHARE SCRATCH
#
# SHARE is the directory with machine.sh. SCRATCH, which is emptied, gets what containerd and the kubelet store, and the
# reports: SCRATCH/log/e2e-node. All processes end with this one. SIGINT and SIGTERM interrupt the suite, which then cleans up
# and writes its report; a second one ends all at once.
set -eu

# wait_for waits for a child and sets code to its exit code. A signal that is trapped ends wait early, with a code of its own: the
# last wait says how the child ended, or 127 if that has been said.
wait_for() {
	while :; do
		code=0
		wait "$1" || code=$?
		kill -0 "$1" 2>/dev/null && continue
		said=0
		wait "$1" || said=$?
		[ $said = 127 ] || code=$said
		return 0
	done
}

# interrupt does to the suite and its processes, which are a group, what Ctrl-C in a terminal does. Before the suite has begun, all ends.
interrupt() {
	[ -n "$suite" ] && kill -INT "-$suite" 2>/dev/null || exit 143
}

# The namespaces are made; this is their first process.
inside() {
	share=$1 scratch=$2 root=$2/root suite=""
	trap interrupt TERM
	mount --make-rprivate /
	mkdir -p "$root" "$scratch/upper"
	mount -t tmpfs tmpfs "$scratch/upper"
	mkdir "$scratch/upper/data" "$scratch/upper/work"
	mount -t overlay -o "lowerdir=/,upperdir=$scratch/upper/data,workdir=$scratch/upper/work" overlay "$root"
	for dir in kubelet containerd log; do
		mkdir -p "$scratch/$dir"
		[ $dir = log ] && target=$root/var/log || target=$root/var/lib/$dir
		[ ! -L "$target" ] || rm "$target"
		mkdir -p "$target"
		mount --bind "$scratch/$dir" "$target"
	done
	# The suite would believe that systemd runs.
	rm -f "$root/usr/bin/systemd-run" "$root/usr/bin/systemctl" "$root/usr/bin/journalctl"
	mkdir -p "$root/node" "$root/old"
	mount --bind "$share" "$root/node"
	mount --rbind /dev "$root/dev"
	mount -t proc proc "$root/proc"
	mount -t sysfs sysfs "$root/sys"
	for dir in run tmp; do mount -t tmpfs -o mode=1777 tmpfs "$root/$dir"; done
	mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
	sed -n 's/^[1-9][0-9]*:\([^:]*\):.*/\1/p' /proc/self/cgroup | while read -r controllers; do
		dir=$root/sys/fs/cgroup/${controllers#name=}
		mkdir "$dir"
		case $controllers in name=*) controllers=none,$controllers ;; esac
		mount -t cgroup -o "$controllers" cgroup "$dir"
	done
	cd "$root"
	pivot_root . old
	umount -l /old
	mount --make-rshared /
	hostname node
	printf '127.0.0.1 localhost\n10.250.0.1 node\n' > /etc/hosts
	# An address and a default route, as every node has them; nothing is at the other end.
	ip link set lo up
	ip link add eth0 type veth peer name eth0-end
	ip addr add 10.250.0.1/24 dev eth0
	ip link set eth0 up
	ip link set eth0-end up
	ip route add default via 10.250.0.2 dev eth0
	# This process is the first of its namespace, and collects the orphans. A shell's children in the background ignore SIGINT.
	# It begins once this process can interrupt it, which takes its PID and its group.
	mkfifo /run/begin
	env --default-signal=INT setsid sh -c 'read -r _ < /run/begin; exec sh /node/machine.sh' &
	suite=$!
	echo > /run/begin
	rm /run/begin
	wait_for $suite
	exit $code
}
[ "$1" != --inside ] || { shift; inside "$@"; }

share=$1 scratch=$2
[ -f /sys/fs/cgroup/cgroup.controllers ] && { echo "isolate.sh: this machine has cgroup v2: use a virtual machine" >&2; exit 1; }
rm -rf "$scratch"
mkdir -p "$scratch"
# A cgroup of its own in each hierarchy, which is the root cgroup of all that runs inside.
name=berth-e2e-node.$$ made=""
for hierarchy in $(sed -n 's/^[1-9][0-9]*:\([^:]*\):\(.*\)/\1:\2/p' /proc/self/cgroup); do
	controllers=${hierarchy%%:*} path=${hierarchy#*:}
	parent=/sys/fs/cgroup/${controllers#name=}$path
	mkdir "$parent/$name"
	made="$made $parent/$name"
	if [ "$controllers" = cpuset ]; then
		for file in cpuset.cpus cpuset.mems; do cat "$parent/$file" > "$parent/$name/$file"; done
	fi
done
# The kernel takes a moment to end the processes of a namespace.
cleanup() {
	for dir in $made; do
		tries=0
		until find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || [ ! -d "$dir" ] || [ $tries = 300 ]; do
			tries=$((tries + 1))
			sleep 0.1
		done
	done
}
trap cleanup EXIT
(
	for dir in $made; do echo 0 > "$dir/cgroup.procs"; done
	exec setpriv --pdeathsig KILL unshare --mount --net --uts --ipc --pid --cgroup --fork --kill-child \
		sh "$0" --inside "$share" "$scratch"
) &
child=$!
# unshare ignores SIGTERM, and the namespace ends with it; its child is the namespace's first process.
stop() {
	trap 'kill -KILL $child 2>/dev/null' INT TERM
	pkill -TERM -P $child || kill -KILL $child 2>/dev/null
}
trap stop INT TERM
wait_for $child
exit $code
