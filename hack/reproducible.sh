#!/bin/sh
# Builds programs twice from the same commit, in two directories and with two build caches, and compares them byte for byte.
# usage: hack/reproducible.sh [PROGRAM...]   (default: berth berth-isolate cni/berth; also possible: berth-dns berth-controlplane)
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- berth berth-isolate cni/berth
work=$(mktemp -d)
trap 'git worktree remove --force "$work/one/tree" 2>/dev/null || true; git worktree remove --force "$work/a/much/longer/path/tree" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

build() { # TREE PROGRAM OUTPUT
	case $2 in
	berth-controlplane) (cd "$1/controlplane" && go build -trimpath -ldflags "$(./ldflags.sh)" -o "$3" ./cmd/berth-controlplane) ;;
	berth-dns) (cd "$1/dns" && go build -trimpath -ldflags "-s -w" -o "$3" .) ;;
	cni/berth) (cd "$1" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$3" ./cmd/berth-cni) ;;
	berth) (cd "$1" && go build -trimpath -ldflags "-s -w -X github.com/berth-dev/berth/version.Berth=$(./hack/version.sh)" -o "$3" ./cmd/berth) ;;
	*) (cd "$1" && go build -trimpath -ldflags "-s -w" -o "$3" "./cmd/$2") ;;
	esac
}

for at in one a/much/longer/path; do
	mkdir -p "$work/$at/bin/cni"
	git worktree add --quiet --detach "$work/$at/tree"
	for program; do
		echo "building $program in $at"
		GOCACHE="$work/$at/cache" build "$work/$at/tree" "$program" "$work/$at/bin/$program"
	done
	rm -rf "$work/$at/cache"
done
for program; do
	cmp "$work/one/bin/$program" "$work/a/much/longer/path/bin/$program"
	echo "$program is reproducible: $(sha256sum <"$work/one/bin/$program" | cut -d ' ' -f 1)"
done
