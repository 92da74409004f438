#!/bin/sh
# Runs the short part of the tests in a virtual machine: systemd and cgroup v2, which most users have and CI's machines may
# not. Skips it, and says so, only where qemu cannot emulate a machine at all. Called by hack/test.sh; make vm-test runs all.
set -eu
cd "$(dirname "$0")/.."
[ "$(uname -m)" = x86_64 ] || { echo "SKIPPED: the virtual machine of the tests is for x86_64, and this is $(uname -m)"; exit 0; }
./hack/install.sh "$@"
(cd vm && go build -trimpath -o ../bin/vm-run ./cmd/vm)
if ! reason=$(bin/vm-run -check 2>&1); then
	echo "SKIPPED: qemu cannot emulate a machine here: $reason"
	exit 0
fi
cd vm && exec go test -tags vm -count=1 -timeout 20m -v -run '^TestKubeletUnderSystemd$' .
