#!/bin/sh
# Checks the packages of a directory: checksums, contents, and for this processor a whole life of the Debian package on a small system of its
# own (mmdebstrap): apt installs it with its dependencies, systemd accepts its units, man, completions and programs work, and a purge leaves
# nothing. Nothing is installed on this machine but the tools for that.
# usage: hack/dist-check.sh DIST ARCH (root)
set -eu
[ $# -eq 2 ] || { echo "usage: $0 DIST ARCH" >&2; exit 2; }
dist=$(CDPATH='' cd -- "$1" && pwd) arch=$2
cd "$(dirname "$0")/.."
./hack/install.sh mmdebstrap rpm
fail() {
	echo "dist-check: $*" >&2
	exit 1
}
one() { # PATTERN: the newest file of it
	# shellcheck disable=SC2012 # names without special characters
	found=$(ls -t "$dist"/$1 2>/dev/null | head -n 1)
	[ -n "$found" ] || fail "no $1 in $dist: run make dist"
	echo "$found"
}
rpmarch=x86_64
[ "$arch" != arm64 ] || rpmarch=aarch64
deb=$(one "berth_*_$arch.deb") rpm=$(one "berth-*.$rpmarch.rpm") tar=$(one "berth_*_linux_$arch.tar.gz") sbom=$(one "berth_*_linux_$arch.spdx.json")

(cd "$dist" && sha256sum --check --quiet SHA256SUMS)
for file in "$deb" "$rpm" "$tar" "$sbom"; do grep -q "  $(basename "$file")\$" "$dist/SHA256SUMS" || fail "SHA256SUMS does not have $file"; done
echo "checksums: right"

work=$(mktemp -d)
root=$work/root
trap 'for m in proc dev; do umount -l "$root/$m" 2>/dev/null || true; done; rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

# The three have the same files.
dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's,^\./,,; s,/$,,' | grep -v '^usr/share/doc/berth/changelog' | sort >"$work/deb"
tar -tzf "$tar" | sed 's,/$,,' | sort >"$work/tar"
rpm -qlp "$rpm" 2>/dev/null | sed 's,^/,,' | sort >"$work/rpm"
for format in rpm deb; do
	comm -23 "$work/tar" "$work/$format" >"$work/missing"
	[ ! -s "$work/missing" ] || fail "the $format lacks $(tr '\n' ' ' <"$work/missing")"
done
echo "contents: $(wc -l <"$work/tar") files, directories and links, the same in deb, rpm and tar.gz"
rpm -Kp --nosignature "$rpm" >/dev/null 2>&1 || rpm -K --nosignature "$rpm" >/dev/null || fail "rpm does not verify $rpm"

if [ "$arch" != "$(dpkg --print-architecture)" ]; then
	exit 0
fi
mmdebstrap --quiet --variant=minbase --include=systemd,man-db,bash-completion,zsh "$(. /etc/os-release && echo "$VERSION_CODENAME")" "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
# apt reaches what this machine's does.
cp /etc/resolv.conf "$root/etc/resolv.conf"
rm -f "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
cp -rL /etc/apt/sources.list* "$root/etc/apt/"
[ ! -d /etc/apt/apt.conf.d ] || cp -rL /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
[ ! -f /etc/apt/apt.conf ] || cp /etc/apt/apt.conf "$root/etc/apt/"
inside() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
inside apt-get -qq update
# What is there before, but for the files of dpkg, apt and other packages, which stay.
list() { (cd "$root" && find etc usr var/lib var/cache/man -xdev -path var/lib/dpkg -prune -o -path var/lib/apt -prune -o -print | grep berth | sort || true); }
list >"$work/before"
cp "$deb" "$root/root/berth.deb"
inside apt-get install -y -qq --no-install-recommends /root/berth.deb >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt does not install the package"; }
inside berth version
inside berth kubectl version --client >/dev/null
inside runc --version >/dev/null 2>&1 && fail "runc is on the PATH: it belongs in /usr/libexec/berth"
inside /usr/libexec/berth/runc --version >/dev/null || fail "runc does not run: a library is missing"
inside berth up --print-config >"$work/config" || fail "berth does not read its configuration"
grep -q "api-port: 6443 # default" "$work/config" || fail "unexpected configuration"
inside systemd-analyze verify --man=no berth.service berth@x.service 2>"$work/units" || { cat "$work/units" >&2; fail "systemd does not accept the units"; }
grep berth "$work/units" && fail "systemd warns about the units"
page=$(inside man --path berth-up) || fail "man does not find berth-up"
# By its path, because man keeps what it formats of others in a cache of its own, where it would stay after the purge.
inside man --warnings --local-file "$page" >"$work/man" 2>"$work/man.warnings" || { cat "$work/man.warnings" >&2; fail "man does not format berth-up"; }
[ ! -s "$work/man.warnings" ] || { cat "$work/man.warnings" >&2; fail "man warns"; }
grep -q -- --api-port "$work/man" || fail "the man page of berth up lacks a flag"
inside bash -c '. /usr/share/bash-completion/bash_completion && _completion_loader berth; complete -p berth' >/dev/null || fail "no completion in bash"
inside zsh -fc 'fpath=(/usr/share/zsh/site-functions $fpath); autoload -Uz compinit && compinit -u && whence -v _berth' >/dev/null || fail "no completion in zsh"
inside dpkg --verify berth >"$work/verify" || true
[ ! -s "$work/verify" ] || { cat "$work/verify" >&2; fail "files differ from the package's"; }
[ "$(inside dpkg-query -W -f '${Conffiles}' berth | awk '{print $1}' | xargs)" = /etc/berth/config.yaml ] || fail "unexpected conffiles"
[ -L "$root/etc/systemd/system/multi-user.target.wants/berth.service" ] || fail "berth.service is not enabled"
echo "installed: units, man pages, completions, configuration and programs work; it needs $(inside dpkg-query -W -f '${Installed-Size}' berth) KiB"

echo "api-port: 7443" >"$root/etc/berth/config.yaml"
mkdir -p "$root/var/lib/berth" && echo '{}' >"$root/var/lib/berth/cluster.json"
inside apt-get remove -y -qq berth >/dev/null 2>&1
[ -f "$root/etc/berth/config.yaml" ] && [ -f "$root/var/lib/berth/cluster.json" ] || fail "removing deletes configuration or data"
[ ! -e "$root/usr/libexec/berth" ] || fail "removing leaves programs"
inside apt-get purge -y -qq berth >/dev/null 2>&1
list >"$work/after"
cmp -s "$work/before" "$work/after" || { diff "$work/before" "$work/after" >&2; fail "purging leaves files"; }
echo "removed and purged: nothing is left"
