#!/bin/sh
# Draws the picture of the README: the start of the demo's Pod on a cluster of its own. Usage: picture.sh BIN FILE
set -eu
[ $# -eq 2 ] || { echo "usage: picture.sh BIN FILE" >&2; exit 2; }
berth=$1/berth file=$2
dir=$(mktemp -d)
mkfifo "$dir/output"
"$berth" --data-dir "$dir/data" up --demo --isolated --api-port 0 >"$dir/output" &
cluster=$!
stop() {
	kill "$cluster" 2>/dev/null || true
	wait "$cluster" || true
	rm -rf "$dir"
}
trap stop EXIT
exec 3<"$dir/output"
started=
while read -r line <&3; do
	case $line in *"see it"*) started=yes; break ;; esac
done
[ -n "$started" ] || { echo "picture.sh: the cluster did not start" >&2; exit 1; }
cat <&3 >/dev/null &
"$berth" --data-dir "$dir/data" kubectl wait --for=condition=Ready pod -l app=demo --timeout=2m
"$berth" --data-dir "$dir/data" explain "$("$berth" --data-dir "$dir/data" kubectl get pods -l app=demo -o name | head -n 1)" --svg "$file"
