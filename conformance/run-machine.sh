#!/bin/sh
# Builds what is missing and runs specs of upstream's suite on a cluster in a virtual machine with systemd and cgroup v2, whose kubelet is a
# service that specs can stop over SSH: for [Disruptive] specs, and for what the kernel of this machine cannot do. Needs `make build` and
# `make vm` first, and root.
#
#   LIST      run exactly the specs of this file (default: drivers/DRIVER-machine.txt)
#   FOCUS     run the specs whose name matches this regular expression instead
#   SKIP      omit the specs whose name matches this one
#   DRIVER    the storage class of the [External.Storage] specs (default: berth-loop)
#   PARALLEL  how many run at once (default 1: disruptive specs stop the kubelet of the others)
#   REPORT    the report's file (default: drivers/DRIVER-machine.md beside this file, with the release before the dot if it is named)
#   IMAGES    import only the stub images whose names match this: each MiB takes a machine without KVM a second or more
#             (default: those of storage specs)
#   RELEASE   the virtual machine's release of Debian or Ubuntu (default bookworm)
#   OUT       directory of logs and of the suite's own report (default: conformance/machine of BIN); it is emptied
#   BIN       the directory of make build (default: bin of the repository)
# Further arguments go to the program: run.sh --help lists them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=${BIN:-$here/../bin} driver=${DRIVER:-berth-loop}
[ -x "$bin/berth" ] || { echo "run-machine.sh: $bin/berth not found: run make build first" >&2; exit 1; }
list=${LIST:-$here/drivers/$driver-machine.txt} out=${OUT:-$bin/conformance/machine}
"$here/build.sh" "$bin"

share=$out/share
rm -rf "$out"
mkdir -p "$share/bin/conformance"
for name in berth berth-controlplane berth-dns berth-isolate berth-supervisor kubectl containerd containerd-shim-runc-v2 containerd-shim-berth-v1 runc cni images; do
	cp -al "$bin/$name" "$share/bin/"
done
for name in conformance ginkgo e2e.test; do cp -al "$bin/conformance/$name" "$share/bin/conformance/"; done
"$bin/conformance/conformance" images --bin-dir "$bin" --out "$share/images" --only "${IMAGES:-/(busybox|agnhost:2\\.6|pause|nginx)}"
cp -r "$here/drivers" "$here/machine.sh" "$share/"
cp "$list" "$share/"
set -- --driver "/suite/drivers/$driver.yaml" --expected "/suite/${list##*/}" --parallel "${PARALLEL:-1}" ${FOCUS:+--focus "$FOCUS"} ${SKIP:+--skip "$SKIP"} "$@"
quoted=""
for word; do quoted="$quoted '$(printf %s "$word" | sed "s/'/'\\\\''/g")'"; done
code=0
"$bin/vm-run" -cache "$bin/vm" ${RELEASE:+-release "$RELEASE"} -memory 8192 -disk 24 -share "$share:/suite" -copy "/var/log/suite:$out" -- "sh /suite/machine.sh$quoted" || code=$?
rm -rf "$share"
[ ! -f "$out/suite/report.md" ] || cp "$out/suite/report.md" "${REPORT:-$here/drivers/$driver-machine${RELEASE:+-$RELEASE}.md}"
exit $code
