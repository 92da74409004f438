#!/bin/sh
# Builds what the benchmarks need into BIN/bench: Kubernetes' own kubelet, from the module in upstream/, and the
# benchmarks themselves. Usage: bench/build.sh BIN
set -eu
[ $# -eq 1 ] || { echo "usage: build.sh BIN" >&2; exit 2; }
mkdir -p "$1/bench"
bin=$(cd "$1" && pwd)/bench
cd "$(dirname "$0")"
go=${GO:-go}
# The same flags as the control plane's, so that what both are made of is compiled once.
"$go" -C upstream build -trimpath -ldflags "$(../controlplane/ldflags.sh)" -o "$bin/kubelet" k8s.io/kubernetes/cmd/kubelet
"$go" build -trimpath -o "$bin/bench" .
