#!/bin/sh
# Fetches Debian packages with the libraries that they need and unpacks them side by side into a directory: nothing is
# installed on the machine. Does nothing if the directory has the same packages already.
# Usage: hack/debs.sh DIRECTORY PACKAGE…   EXCLUDE is a regular expression of libraries to omit.
# Exits with 75 if the packages cannot be downloaded: their server may be reachable later.
set -eu
[ $# -ge 2 ] || { echo "usage: debs.sh DIRECTORY PACKAGE…" >&2; exit 2; }
root=$1
shift
programs="$*"
stamp="$root/.packages"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$programs" ]; then
	exit 0
fi
for tool in apt-get apt-cache dpkg-deb; do
	command -v $tool >/dev/null || { echo "debs.sh: $tool not found: this needs Debian or a relative of it" >&2; exit 1; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck disable=SC2086 # one argument for each package
list() {
	# Of what the programs need, only libraries go into an image.
	apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
		--no-enhances $programs | sed -n 's/^\(lib[a-z0-9.+-]*\|zlib1g\)$/\1/p' | grep -vxE "${EXCLUDE:-}" | sort -u
}
if ! list >/dev/null 2>&1 || [ -z "$(list)" ]; then
	apt-get update -qq
fi
libraries=$(list)
echo "debs: apt-get download of $(echo $programs $libraries | wc -w) packages"
# shellcheck disable=SC2086 # one argument for each package
download() {
	(cd "$work" && chmod 755 . && apt-get download -qq -o APT::Sandbox::User=root -o Acquire::Retries=5 $programs $libraries >/dev/null)
}
# An old index names versions that the server no longer has.
download || { apt-get update -qq && download; } || {
	echo "debs.sh: apt-get could not download the packages: is their server reachable?" >&2
	exit 75
}
rm -rf "$root"
mkdir -p "$root"
for package in "$work"/*.deb; do
	dpkg-deb -x "$package" "$root"
done
printf '%s\n' "$programs" >"$stamp"
