#!/bin/sh
# Builds what is missing and runs upstream's suite on a cluster of its own. Needs `make build` first, and root.
#
#   FOCUS     run the specs whose name matches this regular expression; without it, those of expected.txt
#   SKIP      omit the specs whose name matches this one
#   PARALLEL  how many run at once (default 6)
#   LIST      run exactly the specs of this file
#   ALL       if set, run exactly the specs that upstream requires of a conformant cluster, [Conformance]
#   DRIVER    test a storage class instead, with the [External.Storage] specs of drivers/DRIVER.txt
#   MOCK      if set, run the "CSI Mock" specs of csi-mock.txt, or those of FOCUS, on one node
#   REPORT    the report's file (default: report.md beside this file; all.md with ALL)
#   BIN       the directory of make build (default: bin of the repository)
# Further arguments go to the program: run.sh --help lists them.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=${BIN:-$here/../bin}
[ -x "$bin/berth" ] || { echo "run.sh: $bin/berth not found: run make build first" >&2; exit 1; }
"$here/build.sh" "$bin"
expected=$here/expected.txt report=$here/report.md
if [ -n "${DRIVER:-}" ]; then
	expected=$here/drivers/$DRIVER.txt report=$here/drivers/$DRIVER.md
	set -- --driver "$here/drivers/$DRIVER.yaml" "$@"
fi
if [ -n "${MOCK:-}" ]; then
	expected=$here/csi-mock.txt report=$here/csi-mock.md
	# The manifests of these drivers have it there.
	set -- --one-node --kubelet-root-dir /var/lib/kubelet "$@"
fi
if [ -n "${ALL:-}" ]; then
	report=$here/all.md
	set -- --conformance "$@"
fi
exec "$bin/conformance/conformance" --bin-dir "$bin" --expected "$expected" \
	--report "${REPORT:-$report}" --parallel "${PARALLEL:-6}" \
	${FOCUS:+--focus "$FOCUS"} ${SKIP:+--skip "$SKIP"} ${LIST:+--list "$LIST"} "$@"
