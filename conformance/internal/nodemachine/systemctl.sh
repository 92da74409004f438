#!/bin/sh
# Stands in for systemctl where systemd does not run: the suite stops and starts its kubelet with it, and with nothing else.
# The kubelet is the process that kubelet.sh has started.
set -eu
state=/run/e2e-kubelet
alive() { [ -f $state/pid ] && kill -0 "$(cat $state/pid)" 2>/dev/null; }
stop() {
	alive || return 0
	pid=$(cat $state/pid)
	kill -TERM "$pid" 2>/dev/null || return 0 # it has ended meanwhile
	while kill -0 "$pid" 2>/dev/null && ! grep -q '^State:.Z' /proc/"$pid"/status 2>/dev/null; do sleep 0.1; done
}
case "$1" in
list-units)
	case "$*" in
	*--state=running*) alive || exit 0 ;;
	esac
	echo "kubelet-native.service loaded active running kubelet"
	;;
kill) ! alive || kill -TERM "$(cat $state/pid)" 2>/dev/null || true ;;
stop) stop ;;
restart | start)
	[ "$1" = start ] || stop
	# One argument a line.
	IFS='
'
	set -f
	# shellcheck disable=SC2046 # the lines are the arguments
	setsid "$(dirname "$0")/kubelet" $(cat $state/arguments) >>/var/log/e2e-node/kubelet.log 2>&1 </dev/null &
	;;
reset-failed) ;;
*) echo "systemctl: $1 is not supported here" >&2; exit 1 ;;
esac
