#!/bin/sh
# Builds what is missing and runs upstream's suite of one node (test/e2e_node), which starts the kubelet itself. Needs
# `make build` and, for the virtual machine, `make vm` first; and root. A spec that has a result is not run again, so that a
# long list can be run in parts: the same command continues where the last one ended or was interrupted.
#
#   KUBELET   berth or upstream (default berth)
#   RUNTIME   the runtime of all Pods: runc (by containerd's own shim) or berth (default runc)
#   NATIVE    if set, run in namespaces of this machine instead of a virtual machine: much faster, without systemd
#   NUMA      if set, the virtual machine has 8 CPUs on 2 sockets, each a NUMA node, for the specs of CPUs, memory and topology
#   SMT       the same with 16 CPUs, two threads a core, for the specs about whole cores
#   SWAP      if set, the virtual machine has swap
#   QUOTA     if set, the virtual machine's kubelet has a file system with project quotas
#   RELEASE   the virtual machine's release of Debian or Ubuntu (default bookworm): trixie or noble, for instance; what must pass is the same
#   FOCUS     run the specs whose name matches this regular expression; without it, those of the list
#   SKIP      omit the specs whose name matches this one
#   PARALLEL  how many run at once (default 2)
#   LIST      run exactly the specs of this file
#   LIMIT     run at most so many specs (default 150)
#   AGAIN     run specs again that have a result: failed or all
#   RESULTS   the file with the result of each spec (default: node/WHERE-KUBELET.jsonl beside this file, with -shim before
#             the dot for Berth's runtime)
#   REPORT    the report's file (default: node/WHERE-KUBELET.md beside this file)
#   BIN       the directory of make build (default: bin of the repository)
# Further arguments go to the program: run-node.sh --help lists them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=${BIN:-$here/../bin}
[ -x "$bin/berth" ] || { echo "run-node.sh: $bin/berth not found: run make build first" >&2; exit 1; }
kubelet=${KUBELET:-berth} where=machine
[ -n "${NATIVE:-}" ] && { where=native; set -- --native "$@"; }
[ -n "${NUMA:-}" ] && { where=numa; set -- --cpus 8 --sockets 2 --numa 2 "$@"; }
[ -n "${SMT:-}" ] && { where=smt; set -- --cpus 16 --sockets 2 --threads 2 --numa 2 "$@"; }
[ -n "${SWAP:-}" ] && { where=swap; set -- --swap "$@"; }
[ -n "${QUOTA:-}" ] && { where=quota; set -- --quota "$@"; }
expected=$where
[ -n "${RELEASE:-}" ] && { where=$where-$RELEASE; set -- --release "$RELEASE" "$@"; }
"$here/build.sh" "$bin" node
mkdir -p "$here/node"
name=$where-$kubelet
[ "${RUNTIME:-runc}" != berth ] || name=$name-shim
# What upstream's kubelet passes, with containerd's own shim, is what ours must pass.
[ "$name" != $expected-upstream ] || set -- --add-passed "$here/node/$where.txt" "$@"
exec "$bin/conformance/conformance" node --bin-dir "$bin" --kubelet "$kubelet" --runtime "${RUNTIME:-runc}" \
	--containerd-script "$here/../vm/guest/containerd.sh" --image-store-script "$here/../vm/imagestore.sh" --expected "$here/node/$expected.txt" \
	--report "${REPORT:-$here/node/$name.md}" --results "${RESULTS:-$here/node/$name.jsonl}" \
	--parallel "${PARALLEL:-2}" ${LIMIT:+--limit "$LIMIT"} ${AGAIN:+--again "$AGAIN"} ${FOCUS:+--focus "$FOCUS"} ${SKIP:+--skip "$SKIP"} ${LIST:+--list "$LIST"} "$@"
