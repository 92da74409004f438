#!/bin/sh
# The life of the Debian package on a Debian with systemd in namespaces of this machine: installed, restarted, killed, rebooted, upgraded,
# removed and purged, with Pods that record whether they were disturbed. vm/package_test.go does the same in a virtual machine, with a kernel of
# its own; this takes minutes on a machine without KVM, and needs cgroup v1 or both versions. DIR keeps the system and the packages for a next run.
# usage: hack/package-life.sh BIN DIR (root)
set -eu
[ $# -eq 2 ] || { echo "usage: $0 BIN DIR" >&2; exit 2; }
mkdir -p "$2/dist"
bin=$(CDPATH='' cd -- "$1" && pwd) dir=$(CDPATH='' cd -- "$2" && pwd)
cd "$(dirname "$0")/.."
GO=${GO:-go}
root=$dir/root group=berth-package
fail() {
	echo "package-life: $*" >&2
	exit 1
}
[ -e /sys/fs/cgroup/memory ] || fail "this machine has cgroup v2 alone: run TestPackage of make vm-test"
arch=$($GO env GOARCH)
old=berth_0.1.0_$arch.deb new=berth_0.1.1_$arch.deb
# prepare makes the packages and the system, for which it needs the network.
prepare() {
	for version in 0.1.0 0.1.1; do
		[ ! "$dir/dist/berth_${version}_$arch.deb" -nt "$bin/berth" ] || continue
		rm -rf "$dir/bin"
		mkdir "$dir/bin"
		cp -a "$bin"/berth-* "$bin"/kubectl "$bin"/containerd* "$bin"/runc "$bin"/cni "$bin"/images "$dir/bin"
		"$GO" build -trimpath -ldflags "-s -w -X github.com/berth-dev/berth/version.Berth=$version" -o "$dir/bin/berth" ./cmd/berth
		FORMATS=deb ./hack/dist.sh "$dir/bin" "$arch" "$version" "$dir/dist"
		rm -rf "$dir/bin"
	done
	if [ ! -e "$root/sbin/init" ]; then
		./hack/install.sh mmdebstrap
		rm -rf --one-file-system "$root.partial" # what an interrupted run has left; its mounts may still be there
		mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,kmod,iproute2,iptables,nftables,e2fsprogs,mount,libseccomp2,procps,busybox-static,init-system-helpers,conntrack \
			bookworm "$root.partial"
		for unit in systemd-udevd getty@tty1 console-getty e2scrub_reap; do ln -sf /dev/null "$root.partial/etc/systemd/system/$unit.service"; done
		: >"$root.partial/etc/machine-id"
		mv "$root.partial" "$root"
	fi
}
if [ -z "${INSIDE:-}" ]; then
	prepare
	exec env INSIDE=1 ./hack/netns.sh "./hack/$(basename "$0")" "$bin" "$dir" # in a network namespace of its own
fi
mkdir -p "$root/share" "$root/oldroot"
cp "$dir/dist/$old" "$dir/dist/$new" vm/guest/package-pod.yaml "$root/share"
log=$root/var/log/witness/witness
# What an interrupted run has left.
chroot "$root" dpkg -P berth >/dev/null 2>&1 || true
rm -rf "$root/var/log/witness" "$root/var/lib/berth" "$root/etc/berth"

began=$(date +%s)
say() { echo "[$(($(date +%s) - began)) s] $*"; }
own() { # HIERARCHY: the cgroup of this process in it
	awk -F: -v h="$1" '$2 == h || $2 == "name=" h || h == "unified" && $2 == "" { print "/sys/fs/cgroup/" h $3 }' /proc/self/cgroup
}
# clean removes the cgroups of a system that is off.
clean() {
	for path in /sys/fs/cgroup/*; do
		below=$(own "$(basename "$path")")/$group
		[ ! -d "$below" ] || find "$below" -depth -type d -exec rmdir {} + 2>/dev/null || true
	done
}
finish() {
	[ -z "${init:-}" ] || kill -KILL "$init" 2>/dev/null || true
	clean
}
trap finish EXIT
trap 'exit 130' INT TERM

# boot starts the system, in cgroups of its own, and waits until it is up.
boot() {
	clean
	(
		for path in /sys/fs/cgroup/*; do
			hierarchy=$(basename "$path") parent=$(own "$(basename "$path")")
			mkdir -p "$parent/$group"
			if [ "$hierarchy" = cpuset ]; then
				cat "$parent/cpuset.cpus" >"$parent/$group/cpuset.cpus"
				cat "$parent/cpuset.mems" >"$parent/$group/cpuset.mems"
				echo 1 >"$parent/$group/cgroup.clone_children"
			fi
			sh -c "echo \$PPID >$parent/$group/cgroup.procs"
		done
		cd "$root"
		exec unshare --mount --pid --fork --uts --ipc --cgroup --propagation private sh -euc '
			mount --bind . . && cd "$PWD"
			mount -t proc proc proc
			mount -t sysfs sysfs sys
			mount -t tmpfs -o mode=755 tmpfs dev
			node() { mknod -m 666 "dev/$1" c "$2" "$3"; }
			node null 1 3; node zero 1 5; node full 1 7; node random 1 8; node urandom 1 9; node tty 5 0
			node loop-control 10 "$(awk "/ loop-control/ { print \$1 }" proc/misc)"
			for i in $(seq 0 63); do mknod "dev/loop$i" b 7 "$i"; done
			mkdir dev/pts dev/shm
			mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
			ln -s pts/ptmx dev/ptmx
			ln -s /proc/self/fd dev/fd
			mount -t tmpfs tmpfs run
			mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
			cut -d : -f 2 proc/self/cgroup | while read -r h; do
				case $h in
				"") mkdir sys/fs/cgroup/unified && mount -t cgroup2 cgroup2 sys/fs/cgroup/unified ;;
				name=*) mkdir "sys/fs/cgroup/${h#name=}" && mount -t cgroup -o "none,$h" cgroup "sys/fs/cgroup/${h#name=}" ;;
				*) mkdir "sys/fs/cgroup/$h" && mount -t cgroup -o "$h" cgroup "sys/fs/cgroup/$h" ;;
				esac
			done
			pivot_root . oldroot && cd /
			umount -l /oldroot
			mount --make-rshared /
			hostname debian
			exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init >/dev/null 2>&1 </dev/null'
	) &
	outer=$!
	init='' tries=0
	until [ -n "$init" ] && inside systemctl is-system-running 2>/dev/null | grep -qE 'running|degraded|starting'; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || fail "systemd does not start"
		sleep 0.5
		init=$(pgrep -P "$outer" -x systemd || true)
	done
	# A cgroup of version 2 that has controllers has no processes but those of cgroups below.
	[ ! -d /sys/fs/cgroup/unified ] || echo "$outer" >"$(own unified)/cgroup.procs"
	say "the system runs"
}
inside() { nsenter --target "$init" --all env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
wait_for() { # WHAT COMMAND...
	what=$1 tries=0
	shift
	until "$@" 2>/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 300 ] || { inside journalctl -u berth -n 30 --no-pager >&2; fail "$what: not within 300 tries"; }
		sleep 1
	done
}
both_ready() { [ "$(inside berth kubectl get pods -o 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}')" = "True True" ]; }
active() { [ "$(inside systemctl is-active berth)" = active ]; }
lines() { [ "$(wc -l <"$log")" = "$1" ]; }
# witness checks what the Pods have written. They start in any order.
witness() { # WANT MESSAGE
	got=$(sed 's/^starts$/critical starts/' "$log" | tr '\n' ',')
	[ "$got" = "$1" ] || fail "$2: the Pods wrote $(tr '\n' ',' <"$log")"
	say "$2"
}
starts='critical starts,critical starts,' ends='ends,critical ends,'

boot
say "installing"
inside dpkg -i "/share/$old" >/dev/null
active || fail "the service is not active after the installation"
[ "$(inside systemctl is-enabled berth)" = enabled ] || fail "the service is not enabled"
wait_for "the service account" inside berth kubectl get serviceaccount default >/dev/null
inside berth kubectl apply -f /share/package-pod.yaml >/dev/null
wait_for "Pods" both_ready
witness "$starts" "installed: the service and two Pods run"
inside systemctl restart berth
wait_for "Pods" both_ready
witness "$starts" "restarted: the Pods ran on"
inside sh -c 'kill -KILL "$(systemctl show -P MainPID berth)"'
sleep 1 # systemd notices
wait_for "the service" active
wait_for "Pods" both_ready
witness "$starts" "killed: systemd started it again, the Pods ran on"
inside systemctl reboot
wait "$outer" || true
witness "$starts$ends" "shut down: the Pods ended within their grace periods, the critical one last"
boot
wait_for "Pods" lines 6
witness "$starts$ends$starts" "booted: the Pods are back"
wait_for "the service" active
inside berth upgrade --check | grep -q "its Pods run on" || fail "berth upgrade --check does not say that Pods run on"
inside dpkg -i "/share/$new" >/dev/null
inside berth version | grep -q 0.1.1 || fail "the new version is not installed"
active || fail "the service is not active after the upgrade"
wait_for "Pods" both_ready
grep -q '"berth": "0.1.1"' "$root/var/lib/berth/cluster.json" || fail "the cluster was not upgraded"
witness "$starts$ends$starts" "upgraded: the Pods ran on"
inside dpkg -r berth >/dev/null
witness "$starts$ends$starts$ends" "removed: the Pods ended in order"
left=$(inside sh -c 'pgrep -l berth; pgrep -l containerd; true')
[ -z "$left" ] || fail "processes are left: $left"
[ -f "$root/var/lib/berth/cluster.json" ] || fail "removing deletes the data"
[ ! -e "$root/usr/libexec/berth" ] && [ ! -e "$root/usr/bin/berth" ] || fail "programs are left"
inside dpkg -P berth >/dev/null
[ ! -e "$root/var/lib/berth" ] && [ ! -e "$root/etc/berth" ] || fail "data or configuration is left"
! inside grep berth /proc/self/mountinfo || fail "mounts are left"
say "purged: nothing is left"
inside systemctl poweroff
wait "$outer" || true
init=''
