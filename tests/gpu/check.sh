#!/usr/bin/env bash
# The checks that need a GPU, in less than nine minutes (or GPU_CHECK_SECONDS): tests, measurements,
# compute-sanitizer, benchmark. GPU_CHECK_ONLY="tests first-hour" runs these stages alone.
# From a bare checkout: python3 (PYTHON), torch and pytest are the machine's, nothing is fetched, and
# the package is a wheel that was built elsewhere (WHEEL, or this machine's newest in dist/). Wheels in
# .cache/gpu-wheels/ are installed beside it. Results, and all that is said here, go to OUT, too.
# With GPU_CHECK_DRY=1, everything runs on the mock that HYBRID_PAGES_LIBCUDA names, at tiny sizes and,
# without WHEEL, with the package that python3 finds: it shows that the check itself works.
set -uo pipefail
if [ -n "${OUT:-}" ] && [ -z "${GPU_CHECK_LOG:-}" ]; then
    mkdir -p "$OUT" || exit 2
    OUT=$(cd "$OUT" && pwd)
    export OUT GPU_CHECK_LOG=$OUT/gpu-check.log
    bash "${BASH_SOURCE[0]}" "$@" 2>&1 | tee "$GPU_CHECK_LOG"
    exit "${PIPESTATUS[0]}"
fi
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
site=$PWD/.cache/gpu-site
began=$SECONDS
whole=${GPU_CHECK_SECONDS:-530}
only=${GPU_CHECK_ONLY:-}
kept=$((whole * 3 / 10)) # of it, for the benchmark: however long the stages before it take
[[ -z $only || " $only " == *" benchmark "* ]] || kept=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
declare -A missing
summary=()
ran=0
status=0

say() { printf '==> %s\n' "$*"; }

skip() { summary+=("$1: skipped: $2"); }

# Unpacks wheels into the folder that Python then finds first.
install() {
    local one
    if "$python" -c 'import pip' 2>/dev/null; then
        "$python" -m pip install --quiet --no-index --no-deps --no-compile --disable-pip-version-check \
            --no-cache-dir --upgrade --target "$site" "$@"
    else
        for one in "$@"; do "$python" -m zipfile -e "$one" "$site" || return 1; done
    fi
}

# Seconds that stages before the benchmark may still take.
left() { echo $((whole - kept - SECONDS + began)); }

# stage NAME SECONDS COMMAND...: at most so long, and no longer than is left.
stage() {
    local name=$1 limit=$2 left code=0
    shift 2
    [[ -z $only || " $only " == *" $name "* ]] || return 0
    [ -z "${missing[$name]:-}" ] || { skip "$name" "${missing[$name]}" && return 0; }
    left=$(left)
    ((limit < left)) || limit=$left
    ((limit >= 5)) || { skip "$name" "no time left" && return 0; }
    say "$name (at most $limit s)"
    ran=$((ran + 1))
    timeout --kill-after=5 "$limit" "$@" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    if ((code == 0)); then
        summary+=("$name: $(tail -n 1 "$log")")
    elif [[ $name == *check ]] && grep -q "Device not supported" "$log"; then
        skip "$name" "compute-sanitizer says 'Device not supported'"
    else
        case $code in
            124 | 137) summary+=("$name: FAILED: stopped after $limit s") ;;
            *) summary+=("$name: FAILED with $code: $(tail -n 1 "$log")") ;;
        esac
        status=1
    fi
}

dry=${GPU_CHECK_DRY:+1}
wheel=${WHEEL:-}
if [ -z "$dry$wheel" ]; then
    wheel=$(ls -t dist/hybrid_pages-*"_$(uname -m).whl" 2>/dev/null | head -n 1)
fi
if [ -z "$dry" ] || [ -n "$wheel" ]; then
    if [ ! -f "$wheel" ]; then
        echo "gpu-check: expected a wheel in dist/ (make wheel, on a machine with Rust) or WHEEL=, found" \
            "'${wheel:-none}'" >&2
        exit 2
    fi
    say "installing $wheel"
    rm -rf "$site"
    install "$wheel" || exit 2
    others=()
    for other in .cache/gpu-wheels/*.whl; do
        [ ! -f "$other" ] || others+=("$other")
    done
    ((${#others[@]} == 0)) || install "${others[@]}" || say "not installed: what is in .cache/gpu-wheels/"
    export PYTHONPATH=$site
fi
export PYTHONUNBUFFERED=1
unset VIRTUAL_ENV

reason=$("$python" -c 'from hybrid_pages import cuda; print(cuda.reason() or "")') || exit 2
if [ -n "$reason" ]; then
    if compgen -G "${GPU_CHECK_DEVICES:-/dev/nvidia[0-9]*}" >/dev/null; then
        say "GPU checks: FAILED: there is a GPU, and it can't be used: $reason"
        exit 1
    fi
    say "nothing to check: $reason"
    exit 0
fi
wants=$("$python" tests/gpu/needs.py) || exit 2
while IFS=$'\t' read -r name why; do
    [ -n "$name" ] || continue
    missing[$name]=$why
    say "will be skipped: $name: $why"
done <<<"$wants"

# Without the plugins of pyproject.toml, which the machine's pytest may be too old to find.
pytest=("$python" -m pytest -o addopts=--strict-markers -p no:cacheprovider -q -rs)
"$python" -c 'import pytest_timeout' 2>/dev/null && pytest+=(--timeout 120)
connector=tests/gpu/test_connector.py
stage "tests" 200 "${pytest[@]}" tests/gpu --ignore "$connector" ${dry:+-k alignment}
stage "connector" 150 "${pytest[@]}" "$connector"

budget=$(($(left) - 10))
((budget < 120)) || budget=120
stage "first-hour" $((budget + 10)) "$python" benches/gpu_first_hour.py --budget "$budget" ${dry:+--dry-run}
stage "transformers" 120 "${pytest[@]}" tests/transformers/test_gpu.py -k qwen3.5

PATH=$PATH:/usr/local/cuda/bin
for tool in memcheck racecheck; do
    stage "$tool" 90 "${COMPUTE_SANITIZER:-compute-sanitizer}" --tool "$tool" --error-exitcode 9 \
        "$python" tests/gpu/small.py
done
[ -z "$dry" ] || stage "odd-shapes" 60 "$python" tests/gpu/small.py

kept=0
budget=$(($(left) - 40))
if [ -n "$dry" ]; then
    stage "benchmark" 200 "$python" benches/gpu_paging.py --dry-run --budget 5 --rounds 1
elif ((budget > 20)); then
    stage "benchmark" $((budget + 35)) "$python" benches/gpu_paging.py --budget "$budget"
else
    skip "benchmark" "no time left"
fi

say "GPU checks, $((SECONDS - began)) s"
printf '    %s\n' "${summary[@]}"
if ((ran == 0)); then
    say "FAILED: no stage could run"
    status=1
fi
exit $status
