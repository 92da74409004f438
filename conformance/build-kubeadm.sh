#!/bin/sh
# Builds kubeadm and the images of its control plane, all from the modules that go.mod pins, into DIRECTORY/kubeadm. The test
# of vm/ that joins machines with kubeadm uses it. Usage: build-kubeadm.sh DIRECTORY, which is bin/ of the repository's build.
set -eu
out=$(mkdir -p "$1/kubeadm/programs" && cd "$1/kubeadm" && pwd)
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")"
./build.sh "$bin" programs
version=$(cat "$bin/conformance/upstream-version")
stamp=$(../controlplane/ldflags.sh)
# Compiled with the control plane's flags, so that its cache serves here too, and made static for the images.
for name in kubeadm kube-apiserver kube-controller-manager kube-scheduler kube-proxy; do
	echo "[kubeadm] $name"
	./build-static.sh "$out/programs/$name" k8s.io/kubernetes/cmd/$name "$stamp"
done
echo "[kubeadm] etcd"
./build-static.sh "$out/programs/etcd" go.etcd.io/etcd/server/v3 "-s -w"
"$out/programs/kubeadm" config images list --kubernetes-version "$version" >"$out/images.txt"
"$bin/conformance/conformance" images --bin-dir "$bin" --programs "$out/programs" --out "$out/images" $(cat "$out/images.txt")
