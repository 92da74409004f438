#!/usr/bin/env bash
# Runs all tests. Called by `make test`, which has built bin/. A step that fails does not keep the next ones from running: the last lines
# name all that failed, and bin/test has what each step printed.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" != 0 ]; then
	echo "the tests on a real cluster need root: run sudo make test" >&2
	exit 1
fi
# The flags of make build: with others all packages would be compiled once more.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
logs=$PWD/bin/test
mkdir -p "$logs"
red=() # the names of the steps that failed, each followed by that of its log

# step NAME FUNCTION runs a step.
step() {
	local log=$logs/$2.log status
	printf '\n== %s (%s s so far)\n' "$1" "$SECONDS"
	set +e # a command of a condition would run without set -e
	(set -e; "$2") 2>&1 | tee "$log"
	status=${PIPESTATUS[0]}
	set -e
	[ "$status" = 0 ] || red+=("$1" "$log")
}

# failures prints what failed according to a log: the names of tests and packages, or else its last lines.
failures() {
	grep -E '^ *--- FAIL: |^FAIL[[:space:]]+[^[:space:]]|^panic: |DATA RACE' "$1" | sort -u | head -n 40 || tail -n 5 "$1"
}

style() {
	local unformatted
	unformatted=$(gofmt -l $(git ls-files '*.go'))
	[ -z "$unformatted" ] || { echo "not formatted: $unformatted"; return 1; }
	go vet ./...
	go vet -tags integration ./test/... ./berthtest ./client ./replicaset ./attachdetach ./up/containerd
}

# go vet has run before, and debug information makes linking slower.
units() { go test -race -vet=off -ldflags='-s -w' -timeout 20m ./...; }

# Without the race detector, which would make it slow.
requirements() { go test -vet=off -run AsTheProductUsesThem ./docs/requirements; }

modules() {
	local failed=0 module
	# vet would compile all dependencies of the control plane, of CoreDNS and of the suite.
	(cd controlplane && go test -vet=off ./...) || failed=1
	(cd dns && go test -vet=off ./...) || failed=1
	(cd containers && go test -vet=off -tags "seccomp runc_nocriu" ./cmd/containerd-shim-berth-v1 ./databasecheck ./idlememory ./pause ./shim/...) || failed=1
	(cd conformance && go test -vet=off ./internal/... ./cmd/conformance) || failed=1
	(cd bench && go test ./harness ./report) || failed=1
	for module in codepages vm test/page test/commits; do
		(cd $module && go test ./...) || failed=1
	done
	return $failed
}

apiserver() { go test -vet=off -tags integration -count=1 -timeout 20m -run 'Live|RealAPIServer' ./client ./replicaset ./attachdetach; }

# beside are the tests on real clusters that run at the same time as all others, in a network of their own: those that wait most of the
# time (t.Parallel), and as many others as take about as long as the rest.
beside='^Test(NodeFollowsItsAddress|NodeAPI|Issuers|DeclaredFeatures|ExternalAttacher|Expansion|VolumesFollowTheirPods|Disks|LimitsOfEphemeralStorage|'
beside+='ChildrenOfBerthUpMayDie|CertificatesAreRenewedWhileTheClusterRuns|SizesOfVolumes|Why|SnapshotControllersOfOthers|Snapshots|Sidecar|'
beside+='ResourceMetrics|PrivateImages|Pods|APIServerAway|LocalPathProvisioner|ProvisionOnAnAPIServer|SavedCluster|EmbeddedInCluster|TwoClusters|NodeDeployment)$'

clusters() {
	local status=0 other
	go test -c -vet=off -ldflags='-s -w' -tags integration -o "$logs/integration.test" ./test/integration
	# What a shell starts in the background ignores SIGINT, and so would the programs that the tests start, and end by it.
	# shellcheck disable=SC2016
	env --default-signal=INT hack/netns.sh sh -euc 'cd test/integration && exec "$0" -test.timeout 40m -test.parallel 3 -test.run "$1"' \
		"$logs/integration.test" "$beside" >"$logs/clusters-beside.log" 2>&1 &
	other=$!
	(cd test/integration && "$logs/integration.test" -test.timeout 40m -test.skip "$beside") || status=1
	go test -vet=off -tags integration -count=1 -timeout 20m ./up/containerd/... ./berthtest || status=1
	wait "$other" || status=1
	cat "$logs/clusters-beside.log"
	return $status
}

suites() { (cd test/envtest && go run . -packages webhook); }

conformance() { PARALLEL=8 LIST=conformance/ci.txt REPORT=bin/conformance/ci-report.md ./conformance/run.sh; }

machine() { make -s vm-short; }

step "format and vet" style
step "unit tests, with the race detector" units
step "requirements: each is tested by what the product uses" requirements
step "unit tests of the other modules" modules
step "against a real API server" apiserver
step "on real clusters" clusters
step "a part of controller-runtime's suites, on clusters of berthtest.Environment" suites
step "a part of upstream's conformance suite" conformance
step "a kubelet under systemd, in a virtual machine" machine

printf '\n== done after %s s\n' "$SECONDS"
[ ${#red[@]} = 0 ] || {
	for ((i = 0; i < ${#red[@]}; i += 2)); do
		printf 'FAILED: %s\n' "${red[i]}"
		failures "${red[i + 1]}" | sed 's/^ */    /'
	done
	exit 1
}
