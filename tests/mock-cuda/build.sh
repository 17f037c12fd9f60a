#!/bin/sh
# Builds the mock of the CUDA driver: build.sh OUT [--hide FUNCTION]...
# Hidden functions are not exported. Object files are kept beside OUT and used again.
set -eu
out=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
objects=$(dirname "$out")/objects
mkdir -p "$objects"
hidden=
while [ $# -gt 0 ]; do
    [ "$1" = --hide ] || { echo "build.sh: expected --hide FUNCTION, found $1" >&2; exit 2; }
    hidden="$hidden $2;"
    shift 2
done
# Sources are few and small: any that is newer makes all anew.
stale() {
    [ ! -f "$1" ] || [ -n "$(find "$here" "$here/../../csrc/" "$here/../kernels/shim.h" -newer "$1")" ]
}
built=
for source in "$here"/*.cpp; do
    object=$objects/$(basename "$source" .cpp).o
    stale "$object" || continue
    "${CXX:-c++}" ${CXXFLAGS:-} -std=c++17 -O1 -fPIC -fvisibility=hidden -fno-strict-aliasing -pthread -Wall -Wextra \
        -Wno-unknown-pragmas -Wno-attributes -Wno-parentheses -Wno-maybe-uninitialized \
        -c "$source" -o "$object" &
    built="$built $!"
done
for one in $built; do wait "$one" || { rm -f "$objects"/*.o; exit 1; }; done
# A library that some process has loaded is replaced, never written to.
if [ -z "$built" ] && [ -f "$out" ] && [ -z "$(find "$objects" -name '*.o' -newer "$out")" ]; then
    exit 0
fi
echo "{ local: $hidden nothing; };" >"$out.map"
"${CXX:-c++}" ${CXXFLAGS:-} -shared -pthread -Wl,-soname,libcuda.so.1 -Wl,--version-script="$out.map" \
    -o "$out.new" "$objects"/*.o
mv "$out.new" "$out"
