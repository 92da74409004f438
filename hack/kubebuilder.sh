#!/bin/sh
# Makes a project by kubebuilder's scaffold, with an API, a controller and webhooks, and runs its own suites with package berthtest in the
# place of envtest: on whole clusters, and with the API server alone. The import is all that changes in it.
# usage: hack/kubebuilder.sh BIN (root; make kubebuilder has built kubebuilder)
set -eu
[ $# -eq 1 ] || { echo "usage: $0 BIN" >&2; exit 2; }
bin=$(CDPATH='' cd -- "$1" && pwd)
cd "$(dirname "$0")/.."
tree=$PWD
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
mkdir "$work/guestbook"
cd "$work/guestbook"
kubebuilder=$bin/thirdparty/kubebuilder
"$kubebuilder" init --domain example.test --repo example.test/guestbook --skip-go-version-check
"$kubebuilder" create api --group webapp --version v1 --kind Guestbook --resource --controller
"$kubebuilder" create webhook --group webapp --version v1 --kind Guestbook --defaulting --programmatic-validation
make manifests generate

suites=$(grep -rl '"sigs.k8s.io/controller-runtime/pkg/envtest"' --include='*_test.go' .)
# shellcheck disable=SC2086 # one argument for each file
sed -i 's,"sigs.k8s.io/controller-runtime/pkg/envtest",envtest "github.com/berth-dev/berth/berthtest",' $suites
go mod edit -require github.com/berth-dev/berth@v0.0.0 -replace "github.com/berth-dev/berth=$tree"
packages=$(for suite in $suites; do dirname "$suite"; done | sort -u)
for only in false true; do
	echo "suites of the project, BERTHTEST_API_ONLY=$only:"
	# shellcheck disable=SC2086 # one argument for each package
	BERTH_BIN=$bin BERTHTEST_API_ONLY=$only go test -mod=mod -count=1 -timeout 20m $packages
done
