#!/bin/sh
# Creates .venv-light with PYTHON, by default the first Python on the PATH that every pinned package supports.
# An environment that was not finished has no pip, and is made again. $1: what to make once there is a Python.
set -eu
[ ! -x .venv-light/bin/pip ] || exit 0
for python in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
    if "$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
        exec "$python" -m venv .venv-light
    fi
done
echo "make: vLLM 0.32 needs Python 3.11 to 3.14, and so do the other pinned packages; found none of them as" \
    "'${PYTHON:-python3, python3.11 ... python3.14}'." \
    "Install one, or name it: make ${1:-} PYTHON=/path/to/python3.12" >&2
exit 1
