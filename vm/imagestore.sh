#!/bin/sh
# Makes DIRECTORY what a machine needs as /var/lib/containerd to have the images of an OCI layout, unpacked. An emulated machine takes
# minutes for an import, because every byte is hashed several times, and seconds for a copy of DIRECTORY. Run as root, on the host.
#
#   imagestore.sh PROGRAMS LAYOUT DIRECTORY
#
# PROGRAMS has containerd and berth. DIRECTORY must not exist.
set -eu
programs=$1 layout=$2 directory=$3
[ ! -e "$directory" ] || { echo "imagestore.sh: $directory exists" >&2; exit 1; }
work=$(mktemp -d) pid=""
# containerd closes its databases when it ends.
finish() {
	[ -z "$pid" ] || { kill "$pid" 2>/dev/null || true; wait "$pid" || true; }
	rm -rf "$work"
}
trap finish EXIT
trap 'exit 143' INT TERM
cat > "$work/config.toml" <<TOML
version = 4
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime", "io.containerd.cri.v1.images", "io.containerd.nri.v1.nri"]
[plugins."io.containerd.server.v1.grpc"]
  address = "$work/containerd.sock"
[plugins."io.containerd.server.v1.ttrpc"]
  address = "$work/ttrpc.sock"
TOML
"$programs/containerd" --config "$work/config.toml" --root "$directory" --state "$work/state" >"$work/log" 2>&1 &
pid=$!
until [ -S "$work/containerd.sock" ]; do
	kill -0 "$pid" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
	sleep 0.1
done
"$programs/berth" images --socket "$work/containerd.sock" import "$layout"
