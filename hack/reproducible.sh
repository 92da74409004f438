#!/bin/sh
# Builds programs twice from the same commit, in two directories and with two build caches, and compares them byte for byte.
# usage: hack/reproducible.sh [PROGRAM...]   (default: all of the package; a quarter of an hour each time)
# containers stands for all that containers/build.sh builds.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- berth berth-isolate berth-supervisor images/demo containers berth-dns berth-controlplane kubectl
work=$(mktemp -d)
trap 'for at in one a/much/longer/path; do git worktree remove --force "$work/$at/tree" 2>/dev/null || true; done; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

build() { # TREE PROGRAM BIN
	case $2 in
	berth-controlplane) (cd "$1/controlplane" && go build -trimpath -ldflags "$(./ldflags.sh)" -o "$3/$2" ./cmd/berth-controlplane) ;;
	kubectl) (cd "$1/controlplane" && go build -trimpath -ldflags "$(./ldflags.sh)" -o "$3/$2" k8s.io/kubernetes/cmd/kubectl) ;;
	berth-dns) (cd "$1/dns" && go build -trimpath -ldflags "-s -w" -o "$3/$2" .) ;;
	containers) "$1/containers/build.sh" "$3" ;;
	images/*) (cd "$1" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$3/$2" "./$2") ;;
	berth) (cd "$1" && go build -trimpath -ldflags "-s -w -X github.com/berth-dev/berth/version.Berth=$(./hack/version.sh)" -o "$3/$2" ./cmd/berth) ;;
	*) (cd "$1" && go build -trimpath -ldflags "-s -w" -o "$3/$2" "./cmd/$2") ;;
	esac
}

for at in one a/much/longer/path; do
	mkdir -p "$work/$at/bin/cni" "$work/$at/bin/images"
	git worktree add --quiet --detach "$work/$at/tree"
	for program; do
		echo "building $program in $at"
		GOCACHE="$work/$at/cache" build "$work/$at/tree" "$program" "$work/$at/bin"
	done
	rm -rf "$work/$at/cache"
done
(cd "$work/one/bin" && find . -type f | sort) >"$work/programs"
different=0
while read -r program; do
	if cmp "$work/one/bin/$program" "$work/a/much/longer/path/bin/$program"; then
		echo "${program#./} is reproducible: $(sha256sum <"$work/one/bin/$program" | cut -d ' ' -f 1)"
	else
		different=1
	fi
done <"$work/programs"
exit $different
