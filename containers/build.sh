#!/bin/sh
# Builds the container runtime that Berth runs on: containerd, its shim, Berth's shim, runc, four CNI plugins, Berth's own
# CNI plugin and the first process of every Pod.
# Their versions are the ones that go.mod beside this file pins. Go rebuilds only what changed.
#
# usage: containers/build.sh BIN_DIR
set -eu

if [ $# -ne 1 ] || [ -z "$1" ]; then
	echo "usage: $0 BIN_DIR" >&2
	exit 2
fi
mkdir -p "$1/cni" "$1/images"
bin=$(CDPATH='' cd -- "$1" && pwd)
CDPATH='' cd -- "$(dirname -- "$0")"

fail() {
	echo "containers/build.sh: $*" >&2
	exit 1
}

GO=${GO:-go}
command -v "$GO" >/dev/null || fail "no go command found: install Go (https://go.dev/dl), or set GO to its path"
[ "$("$GO" env GOOS)" = linux ] || fail "containerd and runc run on Linux only, and this builds for $("$GO" env GOOS)"

# runc and Berth's shim, which has runc's library, need C: the part that enters namespaces, and libseccomp.
CC=${CC:-$("$GO" env CC)}
# shellcheck disable=SC2086 # CC may be a command with arguments.
set -- $CC
command -v "$1" >/dev/null ||
	fail "runc needs a C compiler and $1 was not found: apt-get install gcc libc6-dev (or set CC)"
PKG_CONFIG=${PKG_CONFIG:-pkg-config}
command -v "$PKG_CONFIG" >/dev/null || fail "runc needs pkg-config: apt-get install pkg-config"
"$PKG_CONFIG" --exists libseccomp ||
	fail "runc needs the libseccomp headers: apt-get install libseccomp-dev"

# The flags are ours alone: what the caller has in GOFLAGS may not change what is built.
GOFLAGS='-mod=readonly -buildvcs=false'
GOWORK=off
export GOFLAGS GOWORK CC PKG_CONFIG

version() {
	"$GO" list -m -f '{{.Version}}' "$1"
}

# build NAME PACKAGE CGO TAGS [LDFLAGS]
build() {
	started=$(date +%s)
	CGO_ENABLED=$3 "$GO" build -trimpath -tags "$4" -ldflags "-s -w ${5:-}" -o "$bin/$1" "$2" ||
		fail "building $1 from $2 failed, see above"
	echo "$1 $(($(date +%s) - started))s"
}

containerd=github.com/containerd/containerd/v2
plugins=github.com/containernetworking/plugins
containerd_version=$(version "$containerd")
plugins_version=$(version "$plugins")

# Of containerd, with our plugin, what Berth's node uses: CRI over overlayfs (or native) snapshots.
build containerd ./cmd/containerd 0 \
	"urfave_cli_no_docs osusergo netgo static_build no_btrfs no_devmapper no_zfs no_tracing" \
	"-X $containerd/version.Version=$containerd_version"
build containerd-shim-runc-v2 "$containerd/cmd/containerd-shim-runc-v2" 0 \
	"urfave_cli_no_docs osusergo netgo static_build no_grpc" \
	"-X $containerd/version.Version=$containerd_version"
# runc carries its own version in its sources.
build runc github.com/opencontainers/runc 1 "seccomp urfave_cli_no_docs"
# The shim's program is also the first of each process of a container, and a small, static program starts sooner. It leaves out gRPC and
# the part of runc's library that calls CRIU.
static=
[ ! -e "${PKG_CONFIG_SYSROOT_DIR:-}$("$PKG_CONFIG" --variable=libdir libseccomp)/libseccomp.a" ] || static=-extldflags=-static
build containerd-shim-berth-v1 ./cmd/containerd-shim-berth-v1 1 "seccomp runc_nocriu no_grpc osusergo netgo" \
	"$static -X main.version=$containerd_version+runc-$(version github.com/opencontainers/runc)"
# shellcheck disable=SC2086
$CC -std=c11 -D_POSIX_C_SOURCE=200809L -DVERSION='"2"' -Os -Wall -Wextra -Werror -static -s -o "$bin/images/pause" pause/program/pause.c ||
	fail "building pause failed, see above"
for plugin in main/bridge main/loopback ipam/host-local meta/portmap; do
	build "cni/${plugin#*/}" "$plugins/plugins/$plugin" 0 "osusergo netgo" \
		"-X $plugins/pkg/utils/buildversion.BuildVersion=$plugins_version"
done
started=$(date +%s)
./cni.sh "$bin" || fail "building cni/berth failed, see above"
echo "cni/berth $(($(date +%s) - started))s"
