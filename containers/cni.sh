#!/bin/sh
# Builds the CNI plugin berth, which has the plugins bridge and host-local in its program: a Pod's network then takes one execution of a
# program where the plugins' own programs take three.
#
# The plugins are commands, which no program can import. So the compiler gets their sources, of the version that go.mod pins, in packages
# of this module. In the copies, which are removed at the end, the name of the package is another one, and in those of bridge the import of the
# package that executes the plugin host-local, and the call that makes the pair of interfaces (package veth).
#
# usage: containers/cni.sh BIN_DIR
set -eu
[ $# -eq 1 ] || { echo "usage: $0 BIN_DIR" >&2; exit 2; }
mkdir -p "$1/cni"
bin=$(CDPATH='' cd -- "$1" && pwd)
CDPATH='' cd -- "$(dirname -- "$0")"
GO=${GO:-go}
GOFLAGS='-mod=readonly -buildvcs=false'
GOWORK=off
export GOFLAGS GOWORK

here=$(pwd)
module=github.com/berth-dev/berth
plugins=github.com/containernetworking/plugins
sources=$("$GO" list -m -f '{{.Dir}}' "$plugins")
[ -n "$sources" ] || { "$GO" mod download "$plugins"; sources=$("$GO" list -m -f '{{.Dir}}' "$plugins"); }
generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
trap 'exit 130' INT TERM
overlay=

# add FROM PACKAGE_DIR SCRIPT: the sources in FROM, changed by sed's script, are part of the package.
add() {
	mkdir -p "$generated/$2"
	for file in "$1"/*.go; do
		name=$(basename "$file")
		case $name in *_test.go) continue ;; esac
		sed "$3" "$file" >"$generated/$2/added_$name"
		overlay="$overlay${overlay:+,}\"$here/$2/added_$name\":\"$generated/$2/added_$name\""
	done
}
add "$sources/plugins/main/bridge" cni/bridge "s|^package main\$|package bridge|;s|\"$plugins/pkg/ipam\"|\"$module/containers/cni/ipam\"|;s|ip\.SetupVeth(|connectPod(|"
grep -q 'connectPod(' "$generated/cni/bridge/added_bridge.go" || { echo "$0: bridge.go has no call of SetupVeth" >&2; exit 1; }
add "$sources/plugins/ipam/host-local" cni/hostlocal 's|^package main$|package hostlocal|'
add ../up/addressfilter cni/addressfilter ''
add ../cmd/berth-cni cmd/berth-cni "s|\"$module/up/addressfilter\"|\"$module/containers/cni/addressfilter\"|"
printf '{"Replace":{%s}}\n' "$overlay" >"$generated/overlay.json"
CGO_ENABLED=0 "$GO" build -trimpath -tags "cni osusergo netgo" -overlay "$generated/overlay.json" -ldflags "-s -w" \
	-o "$bin/cni/berth" ./cmd/berth-cni
