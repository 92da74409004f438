#!/bin/sh
# Runs every fuzzer of all modules, or those below the directories that are named, for FUZZTIME (10m) each. What one finds is in the package's
# testdata/fuzz afterwards, where `go test` tries it from then on. hack/fuzz-corpus.sh then keeps some of the inputs that reached new code.
set -eu
cd "$(dirname "$0")/.."
time=${FUZZTIME:-10m}
[ $# -gt 0 ] || set -- .
for dir; do [ -d "$dir" ] || { echo "fuzz.sh: $dir is no directory" >&2; exit 1; }; done
found= failed=
for file in $(grep -rl --include='*_test.go' '^func Fuzz' "$@" | sort); do
	for name in $(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' "$file"); do
		found=1
		echo "== ./$(dirname "$file") $name for $time"
		# In its directory, whose module need not be the root module.
		# A new input is made smaller at most 20 times: by default for a minute, in which the fuzzer tries nothing else.
		(cd "$(dirname "$file")" && go test -run '^$' -fuzz "^$name\$" -fuzztime "$time" -fuzzminimizetime 20x .) || failed="$failed $name"
	done
done
[ -n "$found" ] || { echo "fuzz.sh: no fuzzers below $*" >&2; exit 1; }
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
