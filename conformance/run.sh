#!/bin/sh
# Builds what is missing and runs upstream's suite on a cluster of its own. Wants `make build` first, and root.
#
#   FOCUS     run the specs whose name matches this regular expression; without it, those of expected.txt
#   SKIP      leave out the specs whose name matches this one
#   PARALLEL  how many run at once (default 6)
#   LIST      run exactly the specs of this file
#   BIN       the directory of make build (default ../bin)
# Further arguments go to the program: run.sh --help lists them.
set -eu
cd "$(dirname "$0")"
bin=${BIN:-../bin}
./build.sh "$bin"
exec "$bin/conformance/conformance" --bin-dir "$bin" --expected expected.txt --report "${REPORT:-report.md}" \
	--parallel "${PARALLEL:-6}" ${FOCUS:+--focus "$FOCUS"} ${SKIP:+--skip "$SKIP"} ${LIST:+--list "$LIST"} "$@"
