#!/bin/sh
# Checks that everything but object stores compiles for macOS without warnings, where rustup has that target.
# A C compiler for it is not needed: BLAKE3's part in C is left out, and so are object stores with their TLS.
set -eu
target=aarch64-apple-darwin
if ! rustc --print target-libdir --target $target | xargs test -d; then
    echo "==> not checked for macOS: it needs \`rustup target add $target\`"
    exit 0
fi
CARGO_FEATURE_NO_NEON=1 cargo clippy --locked --quiet --workspace --exclude hybrid-pages-remote --no-default-features \
    --target $target -- -D warnings
