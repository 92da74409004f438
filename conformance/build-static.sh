#!/bin/sh
# Builds a static program. Usage: build-static.sh FILE PACKAGE LINKER_FLAGS. It is compiled as the suite is, so that its cache
# serves here too, and made static by the linker, because the images have no libraries for it. The linker's warnings are
# about look-ups that glibc does with libraries; nothing here needs one: Go has its own resolver.
set -eu
log=$1.link.log
go build -trimpath -ldflags "$3 -linkmode external -extldflags -static" -o "$1" "$2" 2>"$log" || { cat "$log" >&2; exit 1; }
rm -f "$log"
