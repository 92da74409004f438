#!/bin/sh
# Prints the linker flags of berth-controlplane: stripped, and stamped with the
# Kubernetes version that go.mod pins (an unstamped API server calls itself
# v0.0.0-master, which clients and version-skew checks reject).
set -eu
cd "$(dirname "$0")"
version=$(sed -n 's|^[[:space:]]*k8s.io/kubernetes \(v[0-9.]*\).*|\1|p' go.mod | head -n 1)
if [ -z "$version" ]; then
	echo "ldflags.sh: no k8s.io/kubernetes version in go.mod" >&2
	exit 1
fi
numbers=${version#v}
major=${numbers%%.*}
rest=${numbers#*.}
minor=${rest%%.*}
# A fixed date keeps the build reproducible; 1970 would read as "not stamped".
date=${SOURCE_DATE_EPOCH:+$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)}
date=${date:-2026-01-01T00:00:00Z}
flags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
	flags="$flags -X $package.gitVersion=$version -X $package.gitMajor=$major -X $package.gitMinor=$minor"
	flags="$flags -X $package.gitTreeState=clean -X $package.gitCommit=$version -X $package.buildDate=$date"
done
printf '%s\n' "$flags"
