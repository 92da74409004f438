#!/bin/sh
# Unpacks a package of Debian into a directory without installing it: no service of it is started. Does nothing if the directory
# exists. Usage: hack/unpack.sh PACKAGE DIRECTORY
set -eu
package=$1 directory=$2
[ ! -d "$directory" ] || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download -qq -o APT::Sandbox::User=root "$package" || {
    apt-get update -qq
    apt-get download -qq -o APT::Sandbox::User=root "$package"
}
dpkg-deb -x ./*.deb unpacked
mkdir -p "$(dirname "$directory")"
mv unpacked "$directory"
