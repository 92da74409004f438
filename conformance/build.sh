#!/bin/sh
# Builds upstream's suite, its test programs and this module's own program. Usage: build.sh DIRECTORY [WHAT], where
# DIRECTORY is bin/ of the repository's build. WHAT is cluster (the default); node, for the suite of one node and upstream's
# kubelet instead; or programs, for no suite. The first build takes minutes and shares its cache with the control plane's.
set -eu
suite=${2:-cluster}
out=$(mkdir -p "$1/conformance/programs" && cd "$1/conformance" && pwd)
cd "$(dirname "$0")"

upstream=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
module=$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)
[ -n "$module" ] || { go mod download k8s.io/kubernetes; module=$(go list -m -f '{{.Dir}}' k8s.io/kubernetes); }
pinned=$(cd ../controlplane && go list -m -f '{{.Version}}' k8s.io/kubernetes)
[ "$upstream" = "$pinned" ] || {
	echo "build.sh: conformance/go.mod has k8s.io/kubernetes $upstream, controlplane/go.mod $pinned: make them one" >&2
	exit 1
}

./deps.sh "$out/debian"
echo "[1/3] upstream's suite, $upstream"
# Unstamped, the suite misjudges specs that ask for a minimum version. Vet would go through every dependency.
stamp=$(../controlplane/ldflags.sh)
case $suite in
cluster) go test -c -vet=off -trimpath -ldflags "$stamp" -o "$out/e2e.test" k8s.io/kubernetes/test/e2e ;;
node)
	go test -c -vet=off -trimpath -ldflags "$stamp" -o "$out/e2e_node.test" k8s.io/kubernetes/test/e2e_node
	go build -trimpath -ldflags "$stamp" -o "$out/kubelet" k8s.io/kubernetes/cmd/kubelet
	;;
programs) ;;
*) echo "build.sh: $suite: want cluster, node or programs" >&2; exit 2 ;;
esac
go build -trimpath -ldflags "-s -w" -o "$out/ginkgo" github.com/onsi/ginkgo/v2/ginkgo

echo "[2/3] upstream's test programs"
images=k8s.io/kubernetes/test/images
program() { ./build-static.sh "$out/programs/$1" "$2" "-s -w $3"; }
program agnhost $images/agnhost "-X main.Version=$(cat "$module/test/images/agnhost/VERSION")"
program nonewprivs $images/nonewprivs ""
program sampledeviceplugin $images/sample-device-plugin ""
program regression-issue-74839 $images/regression-issue-74839 ""
program resource-consumer $images/resource-consumer ""
program consume-cpu $images/resource-consumer/consume-cpu ""
# shellcheck disable=SC2086 # CC may be a command with arguments.
${CC:-cc} -O2 -Wall -Wextra -Werror -static -s -o "$out/programs/sh" sh/sh.c
program nmeter ./cmd/nmeter ""
program cadvisor ./cmd/cadvisor ""
program sample-apiserver k8s.io/sample-apiserver ""
program etcd go.etcd.io/etcd/server/v3 ""
program hostpathplugin ./cmd/hostpathplugin ""
program csiregistrar ./cmd/csiregistrar ""
static=$PWD/build-static.sh
(cd ../dns && "$static" "$out/programs/coredns" . "-s -w")
csi=github.com/kubernetes-csi
for p in external-attacher/v4/cmd/csi-attacher external-provisioner/v6/cmd/csi-provisioner external-resizer/v2/cmd/csi-resizer \
	external-snapshotter/v8/cmd/csi-snapshotter; do
	(cd ../test/thirdparty/csi && "$static" "$out/programs/${p##*/}" "$csi/$p" "-s -w")
done

echo "[3/3] conformance"
go build -trimpath -ldflags "-s -w" -o "$out/conformance" ./cmd/conformance
printf '%s\n' "$module/test/images" >"$out/upstream-images"
printf '%s\n' "$upstream" >"$out/upstream-version"
