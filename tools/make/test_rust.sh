#!/bin/sh
# Tests every crate, by cargo-nextest where it is installed.
set -eu
export HYBRID_PAGES_FUZZ="${HYBRID_PAGES_FUZZ:-2000}"
# The core under shuttle, which nothing else is built with.
cargo test --locked --quiet --manifest-path tests/rust/races/Cargo.toml --target-dir "${CARGO_TARGET_DIR:-target}"
if cargo nextest --version >/dev/null 2>&1; then
    # Half of the time tests wait: for a disk, for a deadline.
    cargo nextest run --test-threads $(($(nproc) * 2)) --locked --workspace --cargo-quiet --no-fail-fast --status-level fail
    exec cargo test --locked --quiet --workspace --doc
fi
exec cargo test --locked --quiet --workspace
