#!/bin/sh
# Fetches the Debian packages that the stub images are made of and unpacks them side by side into a directory:
# nothing is installed on the machine. Usage: deps.sh DIRECTORY. Does nothing if the list below is complete already.
set -eu

# What the images offer: shells and applets, the network tools that agnhost carries, a web server, a few programs.
PROGRAMS="busybox bash-static curl wget netcat-openbsd iproute2 util-linux bind9-dnsutils bind9-libs iperf stress
conntrack hostname libc-bin nginx nginx-common perl-base base-files tzdata coreutils nfs-kernel-server nfs-common rpcbind netbase"

# shellcheck disable=SC2086 # one argument for each package
exec "$(dirname "$0")/../hack/debs.sh" "$1" $PROGRAMS
