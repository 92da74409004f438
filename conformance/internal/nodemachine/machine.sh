#!/bin/sh
# Runs upstream's node suite in this machine, as root. The directory of this script has bin/ (the suite, the kubelet under
# that name, containerd and the rest), images/ (an OCI layout), suite (the command to run, written by the caller), extras (the names of
# what the machine is to have besides, each made by the script of that name) and, if an import
# takes too long in this machine, store/: what containerd stores of the images, made by vm/imagestore.sh.
# Without systemd systemctl.sh and kubelet.sh stop and start the kubelet.
# Reports and logs are in /var/log/e2e-node afterwards. The exit code is the suite's.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=/var/log/e2e-node work=/var/lib/e2e-node
mkdir -p $out $work/tools
[ ! -d /run/systemd/system ] || cat >/dev/null # what a virtual machine receives over its network
while read -r extra; do sh "$here/$extra.sh"; done <"$here/extras"
[ ! -d "$here/store" ] || cp -a "$here/store" /var/lib/containerd
SHIM=$(cat "$here/shim") sh "$here/containerd.sh" "$here/bin" 10.100.0.0/24 "$(cat "$here/sandbox-image")"

# The registry for Pods that pull always; what the others need is imported. Like containerd it is in a session of its own: when
# the suite is interrupted, it still removes its Pods.
setsid "$here/bin/conformance" mirror --layout "$here/images" --registries /etc/containerd/certs.d >$out/mirror.log 2>&1 &
[ -d "$here/store" ] || "$here/bin/berth" images --socket /run/containerd/containerd.sock import "$here/images" >$out/import.log 2>&1 ||
	{ cat $out/import.log >&2; exit 1; }

# The suite calls sudo, and this is root already.
printf '#!/bin/sh\nexec "$@"\n' > $work/tools/sudo
chmod 755 $work/tools/sudo
if [ -d /run/systemd/system ]; then
	ln -sf "$here/bin/kubelet" $work/tools/kubelet
else
	cp "$here/systemctl.sh" $work/tools/systemctl
	cp "$here/kubelet.sh" $work/tools/kubelet
	chmod 755 $work/tools/systemctl $work/tools/kubelet
fi
# ginkgo runs it in its own directory, to which the suite writes.
ln -sf "$here/bin/e2e_node.test" $work/tools/e2e_node.test
hostname node
# The API server and the kubelet choose the address that the default route has. In a virtual machine it leads nowhere.
[ -n "$(ip -4 route show default)" ] || {
	gateway=$(ip -4 -o addr show scope global | awk '$2 != "cni0" {sub(/[0-9]+\/.*/, "2", $4); print $4; exit}')
	ip route add default via "$gateway"
}
PATH=$work/tools:$here/bin:$PATH
export PATH

groups="cgroup v1, no systemd"
[ ! -f /sys/fs/cgroup/cgroup.controllers ] || groups="cgroup v2"
[ ! -d /run/systemd/system ] || groups="$groups, systemd"
echo "Linux $(uname -r), $groups, $(nproc) processors" > $out/machine
cp "$here/kubelet.yaml" $work/kubelet.yaml
cd $work
exec sh "$here/suite"
