#!/bin/sh
# Builds the programs of the last release, from which the test of upgrades starts a cluster. hack/last-release.txt names its commit, and is
# changed with each release. Most of it is in Go's cache already.
# usage: hack/last-release.sh DIR   (the programs are in DIR afterwards)
set -eu
[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
cd "$(dirname "$0")/.."
commit=$(grep -v '^#' hack/last-release.txt)
if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
	echo "SKIPPED: this clone does not have the last release, commit $commit: run git fetch --unshallow"
	exit 0
fi
if [ "$(cat "$1/commit" 2>/dev/null)" = "$commit" ]; then
	exit 0
fi
rm -rf "$1"
mkdir -p "$1"
dir=$(CDPATH='' cd -- "$1" && pwd)
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
trap 'exit 130' INT TERM
git archive "$commit" | tar -x -C "$source"
make -s -C "$source" build BIN="$dir" VERSION="$(sed -n 's/^# version: //p' hack/last-release.txt)" COMMIT="$commit"
echo "$commit" >"$dir/commit"
