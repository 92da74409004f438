#!/bin/sh
# Fetches the Debian packages that the stub images are made of and unpacks them side by side into a directory:
# nothing is installed on the machine. Usage: deps.sh DIRECTORY. Does nothing if the list below is complete already.
set -eu

# What the images offer: shells and applets, the network tools that agnhost carries, a web server, a few programs.
PROGRAMS="busybox bash-static curl netcat-openbsd iproute2 util-linux bind9-dnsutils bind9-libs iperf stress
hostname libc-bin nginx nginx-common perl-base base-files tzdata"

root=$1
stamp="$root/.packages"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$PROGRAMS" ]; then
	exit 0
fi
for tool in apt-get apt-cache dpkg-deb; do
	command -v $tool >/dev/null || { echo "deps.sh: $tool not found: this needs Debian or a relative of it" >&2; exit 1; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
list() {
	# Of what the programs need, only libraries go into an image.
	apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
		--no-enhances $PROGRAMS | sed -n 's/^\(lib[a-z0-9.+-]*\|zlib1g\)$/\1/p' | sort -u
}
if ! list >/dev/null 2>&1 || [ -z "$(list)" ]; then
	apt-get update -qq
fi
libraries=$(list)
echo "deps: apt-get download of $(echo $PROGRAMS $libraries | wc -w) packages"
(cd "$work" && chmod 755 . && apt-get download -qq -o APT::Sandbox::User=root $PROGRAMS $libraries >/dev/null) || {
	echo "deps.sh: apt-get could not download; try apt-get update" >&2
	exit 1
}
rm -rf "$root"
mkdir -p "$root"
for package in "$work"/*.deb; do
	dpkg-deb -x "$package" "$root"
done
printf '%s\n' "$PROGRAMS" >"$stamp"
