#!/bin/sh
# Prints the version of this tree as a semantic version: that of the last tag vX.Y.Z, with the number of commits since and the commit
# when there are any. What it prints also becomes the build metadata of the kubelet's version, which allows letters, digits, dots and
# hyphens only.
set -eu
described=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null || true)
if [ -z "$described" ]; then
	commit=$(git rev-parse --short HEAD 2>/dev/null || true)
	dirty=$(git diff --quiet HEAD 2>/dev/null || echo .dirty)
	described="0.1.0-dev${commit:+.$commit$dirty}"
fi
echo "${described#v}"
