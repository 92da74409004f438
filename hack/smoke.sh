#!/bin/sh
# Starts each program of a build once and checks what it says; with another processor's programs, by qemu's user mode emulation. The control
# plane runs until its API server responds.
# usage: hack/smoke.sh BIN ARCH VERSION
set -eu
[ $# -eq 3 ] || { echo "usage: $0 BIN ARCH VERSION" >&2; exit 2; }
bin=$(CDPATH='' cd -- "$1" && pwd) arch=$2 version=$3
cd "$(dirname "$0")/.."
work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2>/dev/null || true; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# What runs a program: nothing, or the emulator. runc is the only program with libraries: those of the cross compiler, and libseccomp from
# hack/cross.sh.
emulate=
if [ "$arch" != "$(${GO:-go} env GOARCH)" ]; then
	./hack/install.sh qemu-user-static
	emulate="qemu-aarch64-static -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=$bin/sysroot/usr/lib/aarch64-linux-gnu"
fi

check() { # NAME WANT: the output in $work/out has WANT
	if ! grep -q -- "$2" "$work/out"; then
		echo "$1 does not say \"$2\":" >&2
		cat "$work/out" >&2
		exit 1
	fi
	echo "$1 runs on $arch"
}
says() { # NAME WANT ARGUMENT...
	name=$1 want=$2
	shift 2
	# shellcheck disable=SC2086 # one argument for each word
	$emulate "$bin/$name" "$@" >"$work/out" 2>&1 || true # an error is in the output
	check "$name" "$want"
}

says berth "$version" version
says berth "# default" up --print-config --config ''
says berth-isolate "missing: --link"
says berth-supervisor "berth up"
says berth-dns "CoreDNS" -version
says kubectl "Client Version" version --client
says containerd "containerd github.com/containerd" --version
says containerd-shim-runc-v2 "containerd-shim-runc-v2:" -v
says containerd-shim-berth-v1 "containerd-shim-berth-v1:" -v
says runc "libseccomp" --version
says images/pause "^pause " -v
for plugin in berth bridge host-local loopback portmap; do
	CNI_COMMAND=VERSION $emulate "$bin/cni/$plugin" >"$work/out" 2>&1 </dev/null || true
	if ! grep -q supportedVersions "$work/out"; then # those of the standard library of CNI want the configuration
		echo '{"cniVersion":"1.0.0"}' | CNI_COMMAND=VERSION $emulate "$bin/cni/$plugin" >"$work/out" 2>&1 || true
	fi
	check "cni/$plugin" supportedVersions
done

# etcd, the API server, the controllers and the scheduler, on a free port of loopback.
port=$((20000 + $$ % 10000))
$emulate "$bin/berth-controlplane" --data-dir "$work/data" --run-dir "$work/run" --api-port "$port" --unsafe-no-fsync --api-only >"$work/out" 2>"$work/errors" &
pid=$!
tries=0
until grep -q '"component":"controlplane","state":"ready"' "$work/out"; do
	tries=$((tries + 1))
	if [ "$tries" -gt 600 ] || ! kill -0 "$pid" 2>/dev/null; then
		echo "berth-controlplane did not become ready:" >&2
		tail -n 20 "$work/out" "$work/errors" >&2
		exit 1
	fi
	sleep 0.5
done
$emulate "$bin/kubectl" --kubeconfig "$work/data/admin.kubeconfig" get namespaces >"$work/out.namespaces" 2>&1 || true
grep -q kube-system "$work/out.namespaces" || { cat "$work/out.namespaces" >&2; exit 1; }
kill -TERM "$pid"
wait "$pid" || true
pid=
echo "berth-controlplane runs on $arch"
