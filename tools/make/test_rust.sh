#!/bin/sh
# Tests every crate, by cargo-nextest where it is installed.
set -eu
export HYBRID_PAGES_FUZZ="${HYBRID_PAGES_FUZZ:-5000}"
if cargo nextest --version >/dev/null 2>&1; then
    cargo nextest run --locked --workspace --cargo-quiet --no-fail-fast --status-level fail
    exec cargo test --locked --quiet --workspace --doc
fi
exec cargo test --locked --quiet --workspace
