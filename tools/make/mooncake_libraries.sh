#!/bin/sh
# Sees that Mooncake's client finds the libraries of the system that it needs. Where they are missing, Debian's are
# unpacked into FOLDER, not installed: `mooncake_libraries.sh FOLDER`.
set -eu
mkdir -p "$1"
missing=
found=$(/sbin/ldconfig -p)
for library in libibverbs.so.1 libnl-3.so.200 libnl-route-3.so.200; do
    case "$found" in *$library*) ;; *) missing=1 ;; esac
done
[ -n "$missing" ] || exit 0
cd "$1"
if ! apt-get download --quiet --quiet libibverbs1 libnl-3-200 libnl-route-3-200 2>apt.log; then
    cat apt.log >&2
    echo "make: install libibverbs1, libnl-3-200 and libnl-route-3-200" >&2
    exit 1
fi
for package in *.deb; do
    dpkg -x "$package" .
    rm "$package"
done
find . -name '*.so.*' -exec mv -t . {} +
