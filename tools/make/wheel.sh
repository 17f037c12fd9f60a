#!/bin/sh
# Builds the wheel of each target into dist/, by default of this machine: `wheel.sh PROFILE GLIBC [TARGET...]`.
# Against zig's copy of an old glibc's symbols: with the system's, a wheel needs a glibc as new as the system's.
set -eu
profile=$1 compatibility=$2
shift 2
bin=$PWD/.venv-release/bin
PATH=$bin:$PATH
quiet=--quiet
[ ! -t 1 ] || quiet=

# build OPTION...
build() {
    # shellcheck disable=SC2086
    "$bin/maturin" build $quiet --profile "$profile" --locked --zig --compatibility "$compatibility" \
        --auditwheel check --out dist "$@"
}

rm -f dist/*.whl
if [ $# -eq 0 ]; then
    build --interpreter .venv-light/bin/python
fi
for target; do
    printf '==> %s\n' "building the wheel for $target"
    unset PYO3_PYTHON # A wheel for another machine has no Python here to ask.
    if ! "${RUSTC:-rustc}" --print target-libdir --target "$target" | xargs test -d; then
        echo "make: Rust has no library for it: rustup target add $target" >&2
        exit 1
    fi
    build --target "$target"
done
