#!/bin/sh
# Chooses, of the inputs that `go test -fuzz` has kept in Go's cache, those that a fuzzer's committed corpus gets: testdata/fuzz/NAME of its
# package, whose files `go test` tries each time. An input is added if it runs code of the package that no input before it does; small ones come
# first. It is left out if it has more than 2 KiB, or if the corpus has 40 files. What is in the corpus stays. Directories that are named limit
# it to the fuzzers below.
set -eu
cd "$(dirname "$0")/.."
export LC_ALL=C # for comm and sort
most_files=40 most_bytes=2048
[ $# -gt 0 ] || set -- .
cache=$(go env GOCACHE)/fuzz
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# run writes the blocks of code that the named inputs run to $1; it fails if one of them makes the fuzzer fail.
run() {
	rm -f "$tmp/profile"
	(cd "$tmp/package" && "$tmp/fuzzers" -test.run "$2" -test.timeout 1m -test.coverprofile "$tmp/profile") >"$tmp/output" 2>&1 || return 1
	sed -n 's/ [0-9]* [1-9][0-9]*$//p' "$tmp/profile" | sort -u >"$1"
}

# choose adds to the corpus of fuzzer $2 of the package in directory $1, whose path is $3.
choose() {
	corpus=$1/testdata/fuzz/$2
	run "$tmp/covered" "^$2\$" || { cat "$tmp/output" >&2; return 1; }
	mkdir -p "$tmp/package/testdata/fuzz/$2"
	for input in $(ls -Sr "$cache/$3/$2" 2>/dev/null); do
		[ "$(find "$corpus" -type f 2>/dev/null | wc -l)" -lt $most_files ] || break
		[ "$(wc -c <"$cache/$3/$2/$input")" -le $most_bytes ] && [ ! -e "$corpus/$input" ] || continue
		cp "$cache/$3/$2/$input" "$tmp/package/testdata/fuzz/$2/$input"
		if run "$tmp/new" "^$2\$/^$input\$" && [ -n "$(comm -13 "$tmp/covered" "$tmp/new")" ]; then
			mkdir -p "$corpus"
			cp "$cache/$3/$2/$input" "$corpus/$input"
			sort -u -o "$tmp/covered" "$tmp/covered" "$tmp/new"
		fi
		rm "$tmp/package/testdata/fuzz/$2/$input"
	done
	echo "./$1 $2: $(find "$corpus" -type f 2>/dev/null | wc -l) files, $(wc -l <"$tmp/covered") blocks"
}

failed=
for dir in $(grep -rl --include='*_test.go' '^func Fuzz' "$@" | xargs -n1 dirname | sort -u); do
	dir=${dir#./}
	path=$(cd "$dir" && go list .)
	(cd "$dir" && go test -c -cover -o "$tmp/fuzzers" .)
	# The fuzzers run in a copy of the package's directory, which has one input of the cache at a time.
	rm -rf "$tmp/package"
	mkdir -p "$tmp/package"
	cp -R "$dir/." "$tmp/package"
	for name in $(sed -n 's/^func \(Fuzz[A-Za-z0-9]*\)(.*/\1/p' "$dir"/*_test.go); do
		choose "$dir" "$name" "$path" || failed="$failed $name"
	done
done
[ -z "$failed" ] || { echo "failed:$failed" >&2; exit 1; }
