#!/bin/sh
# Installs Debian's packages that are missing; does nothing where all are installed. Usage: hack/install.sh PACKAGE…
set -eu
missing=""
for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || { echo "apt-get not found; install these by hand:$missing" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "run as root (sudo make …) to install:$missing" >&2; exit 1; }
echo "install:$missing"
apt-get update -qq
# shellcheck disable=SC2086 # one argument for each package
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
