#!/bin/sh
# Starts the kubelet where systemd does not run, so that systemctl.sh finds it.
state=/run/e2e-kubelet
mkdir -p $state
echo $$ > $state/pid
printf '%s\n' "$@" > $state/arguments
exec /node/bin/kubelet "$@"
