#!/bin/sh
# Builds all programs for another processor. Only runc, Berth's shim and pause need a C compiler for it, and libseccomp, which Debian's packages
# give without anything being installed.
# usage: hack/cross.sh arm64 BIN VERSION COMMIT
set -eu
[ $# -eq 4 ] && [ "$1" = arm64 ] || { echo "usage: $0 arm64 BIN VERSION COMMIT" >&2; exit 2; }
cd "$(dirname "$0")/.."
GO=${GO:-go}
arch=$1 version=$3 commit=$4
mkdir -p "$2/images" "$2/cni"
bin=$(CDPATH='' cd -- "$2" && pwd)
./hack/install.sh gcc-aarch64-linux-gnu libc6-dev-arm64-cross pkg-config

# libseccomp for the processor, with an index of packages of its own.
sysroot=$bin/sysroot
if [ ! -e "$sysroot/.complete" ]; then
	apt=$bin/apt
	rm -rf "$sysroot" "$apt"
	mkdir -p "$sysroot" "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/debs"
	: >"$apt/status"
	options="-qq -o APT::Architecture=$arch -o APT::Architectures::=$arch -o Dir::State=$apt/state -o Dir::State::status=$apt/status -o Dir::Cache=$apt/cache -o APT::Sandbox::User=root"
	# shellcheck disable=SC2086 # one argument for each option
	apt-get $options -o Acquire::Languages=none update
	# shellcheck disable=SC2086
	(cd "$apt/debs" && apt-get $options download "libseccomp-dev:$arch" "libseccomp2:$arch")
	for deb in "$apt"/debs/*.deb; do dpkg-deb -x "$deb" "$sysroot"; done
	rm -rf "$apt"
	: >"$sysroot/.complete"
fi

export GOARCH="$arch" GOOS=linux CGO_ENABLED=0
ours="-s -w -X github.com/berth-dev/berth/version.Berth=$version -X github.com/berth-dev/berth/version.Commit=$commit"
"$GO" build -trimpath -ldflags "$ours" -o "$bin/berth" ./cmd/berth
for name in isolate supervisor; do "$GO" build -trimpath -ldflags "-s -w" -o "$bin/berth-$name" ./cmd/berth-$name; done
"$GO" build -trimpath -ldflags "-s -w" -o "$bin/images/demo" ./images/demo
triplet=aarch64-linux-gnu
CC="$triplet-gcc" PKG_CONFIG_LIBDIR="$sysroot/usr/lib/$triplet/pkgconfig" PKG_CONFIG_SYSROOT_DIR="$sysroot" \
	CGO_LDFLAGS="-L$sysroot/usr/lib/$triplet" ./containers/build.sh "$bin"
(cd dns && "$GO" build -trimpath -ldflags "-s -w" -o "$bin/berth-dns" .)
cd controlplane
flags=$(./ldflags.sh)
"$GO" build -trimpath -ldflags "$flags" -o "$bin/berth-controlplane" ./cmd/berth-controlplane
"$GO" build -trimpath -ldflags "$flags" -o "$bin/kubectl" k8s.io/kubernetes/cmd/kubectl
