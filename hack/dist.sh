#!/bin/sh
# Makes the packages of Berth from what `make build` (or hack/cross.sh) has built: deb, rpm, tar.gz, and SHA256SUMS.
# usage: hack/dist.sh BIN ARCH VERSION OUT   (FORMATS=deb,rpm,tar: those alone)
set -eu
[ $# -eq 4 ] || { echo "usage: $0 BIN ARCH VERSION OUT" >&2; exit 2; }
cd "$(dirname "$0")/.."
GO=${GO:-go}
mkdir -p "$4"
bin=$(CDPATH='' cd -- "$1" && pwd) arch=$2 version=$3 out=$(CDPATH='' cd -- "$4" && pwd)
# The time of everything in the packages is that of the source.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Only the programs of the package, so that the list of what they are made of has nothing else.
mkdir -p "$work/bin/cni" "$work/bin/images"
for name in berth berth-controlplane berth-dns berth-isolate berth-supervisor kubectl containerd containerd-shim-runc-v2 containerd-shim-berth-v1 runc \
	cni/berth cni/bridge cni/host-local cni/loopback cni/portmap images/pause images/demo; do
	ln "$bin/$name" "$work/bin/$name" 2>/dev/null || cp -p "$bin/$name" "$work/bin/$name"
done
"$GO" run ./hack/notices -bin "$work/bin" -version "$version" -sbom "$work/sbom.spdx.json" -notices "$work/THIRD_PARTY_NOTICES.txt"
"$GO" run -trimpath -tags reference -ldflags "-X github.com/berth-dev/berth/version.Berth=$version" ./cmd/berth reference "$work/reference"
cp "$work/sbom.spdx.json" "$out/berth_${version}_linux_$arch.spdx.json"
cd packaging && "$GO" run -trimpath ./cmd/dist -bin "$work/bin" -reference "$work/reference" -arch "$arch" -version "$version" -out "$out" -formats "${FORMATS:-}" \
	../README.md ../LICENSE "$work/sbom.spdx.json" "$work/THIRD_PARTY_NOTICES.txt"
