#!/bin/sh
# Runs all tests, the fastest first. Called by `make test`, which has built bin/.
set -eu
cd "$(dirname "$0")/.."

step() { printf '\n== %s (%s s so far)\n' "$1" "$(($(date +%s) - began))"; }
began=$(date +%s)

step "format and vet"
unformatted=$(gofmt -l $(git ls-files '*.go'))
[ -z "$unformatted" ] || { echo "not formatted: $unformatted" >&2; exit 1; }
go vet ./...
go vet -tags integration ./test/... ./berthtest ./client ./replicaset ./attachdetach

step "unit tests, with the race detector"
go test -race -timeout 60m ./...

step "requirements: each is tested by what the product uses"
go test -run AsTheProductUsesThem ./docs/requirements # without the race detector, which would make it slow

step "unit tests of the control plane's own packages"
# With the flags of the build, for its cache; vet would compile all dependencies.
(cd controlplane && go test -trimpath -vet=off ./...)

step "against a real API server"
go test -tags integration -count=1 -timeout 60m -run 'Live|RealAPIServer' ./client ./replicaset ./attachdetach

step "on real clusters"
if [ "$(id -u)" = 0 ]; then
    go test -tags integration -count=1 -timeout 60m ./test/integration/... ./up/containerd/... ./berthtest
else
    echo "the tests on a real cluster need root: run sudo make test" >&2
    exit 1
fi
step "a part of controller-runtime's suites, on clusters of berthtest.Environment"
(cd test/envtest && go run . -packages webhook)
step "unit tests of the page's script, the virtual machine, the DNS, the benchmarks and the conformance runner"
(cd vm && go test ./...)
(cd dns && go test ./...)
(cd test/page && go test ./...)
(cd bench && go test ./harness ./report)
(cd conformance && go test -trimpath -vet=off ./internal/... ./cmd/conformance) # the flags of the build, for its cache

step "a part of upstream's conformance suite"
PARALLEL=8 LIST=conformance/ci.txt REPORT=bin/conformance/ci-report.md ./conformance/run.sh

step "a kubelet under systemd, in a virtual machine"
make -s vm-short

step "done"
