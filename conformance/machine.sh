#!/bin/sh
# Runs specs in the virtual machine, as root: run-machine.sh starts it, with the arguments of the program. The directory of this script
# has bin/, images/, drivers/ and the list; reports and logs are in /var/log/suite afterwards.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=/var/log/suite data=/var/lib/suite
mkdir -p $out $data
mkfs.xfs -q -m reflink=1 /dev/disk/by-id/virtio-disk1
mount /dev/disk/by-id/virtio-disk1 $data
# The specs log in to the node, which is this machine.
ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/suite
cat /root/.ssh/suite.pub >> /root/.ssh/authorized_keys
export KUBE_SSH_USER=root KUBE_SSH_KEY_PATH=/root/.ssh/suite
exec "$here/bin/conformance/conformance" --bin-dir "$here/bin" --images "$here/images" --data-dir $data/cluster --out $out --report $out/report.md \
	--one-node --kubelet-root-dir /var/lib/kubelet --kubelet-service --start-timeout 20m --timeout 8h "$@"
