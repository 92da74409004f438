#!/bin/sh
# Gives this machine's kubelet a file system of its own with project quotas, for the specs that measure by them.
set -eu
mkdir -p /var/lib/kubelet
truncate -s 8G /var/kubelet.xfs
mkfs.xfs -q /var/kubelet.xfs
mount -o loop,prjquota /var/kubelet.xfs /var/lib/kubelet
