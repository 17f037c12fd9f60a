#!/usr/bin/env bash
# The checks that need a GPU, in less than nine minutes (or GPU_CHECK_SECONDS): tests,
# compute-sanitizer, benchmark.
# From a bare checkout: python3 (PYTHON), torch and pytest are the machine's, nothing is fetched, and
# the package is a wheel that was built elsewhere (WHEEL, or this machine's newest in dist/). Wheels in
# .cache/gpu-wheels/ are installed beside it.
# With GPU_CHECK_DRY=1, everything runs on the mock that HYBRID_PAGES_LIBCUDA names, at tiny sizes and
# with the package that python3 finds: it shows that the check itself works.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON:-python3}
site=$PWD/.cache/gpu-site
began=$SECONDS
whole=${GPU_CHECK_SECONDS:-530}
kept=$((whole * 3 / 10)) # of it, for the benchmark: however long the stages before it take
log=$(mktemp)
trap 'rm -f "$log"' EXIT
summary=()
status=0

say() { printf '==> %s\n' "$*"; }

# stage NAME SECONDS COMMAND...: at most so long, and no longer than is left of the whole.
stage() {
    local name=$1 limit=$2 left=$((whole - kept - SECONDS + began)) code=0
    shift 2
    ((limit < left)) || limit=$left
    if ((limit < 5)); then
        summary+=("$name: skipped: no time left")
        return 0
    fi
    say "$name (at most $limit s)"
    timeout --kill-after=5 "$limit" "$@" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    case $code in
        0) summary+=("$name: $(tail -n 1 "$log")") ;;
        124 | 137) summary+=("$name: FAILED: stopped after $limit s") ;;
        *) summary+=("$name: FAILED with $code: $(tail -n 1 "$log")") ;;
    esac
    ((code == 0)) || status=1
}

skip() { summary+=("$1: skipped: $2"); }

dry=${GPU_CHECK_DRY:+1}
if [ -z "$dry" ]; then
    wheel=${WHEEL:-$(ls -t dist/hybrid_pages-*"_$(uname -m).whl" 2>/dev/null | head -n 1)}
    if [ ! -f "$wheel" ]; then
        echo "gpu-check: expected a wheel in dist/ (make wheel, on a machine with Rust) or WHEEL=, found" \
            "'${wheel:-none}'" >&2
        exit 2
    fi
    say "installing $wheel"
    rm -rf "$site"
    others=$(ls .cache/gpu-wheels/*.whl 2>/dev/null)
    # shellcheck disable=SC2086
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --disable-pip-version-check \
        --no-cache-dir --target "$site" "$wheel" $others || exit 2
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

# Without the plugins of pyproject.toml, which the machine's pytest may be too old to find.
pytest=("$python" -m pytest -o addopts=--strict-markers -p no:cacheprovider -q -rs --timeout 120)
stage "tests" 200 "${pytest[@]}" tests/gpu ${dry:+-k alignment}

if [ -n "$dry" ]; then
    skip "transformers" "a dry run"
elif why=$("$python" -c 'import hybrid_pages.transformers' 2>&1); then
    stage "transformers" 120 "${pytest[@]}" tests/transformers/test_gpu.py -k qwen3.5
else
    skip "transformers" "${why##*$'\n'}"
fi

if [ -n "$dry" ]; then
    stage "odd shapes" 60 "$python" tests/gpu/small.py
elif PATH=$PATH:/usr/local/cuda/bin && command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck; do
        stage "$tool" 90 compute-sanitizer --tool "$tool" --error-exitcode 9 \
            "$python" tests/gpu/small.py
    done
else
    skip "compute-sanitizer" "not on the PATH"
fi

kept=0
budget=$((whole - SECONDS + began - 40))
if [ -n "$dry" ]; then
    stage "benchmark" 200 "$python" benches/gpu_paging.py --dry-run --budget 5 --rounds 1
elif ((budget > 20)); then
    stage "benchmark" $((budget + 35)) "$python" benches/gpu_paging.py --budget "$budget"
else
    skip "benchmark" "no time left"
fi

say "GPU checks, $((SECONDS - began)) s"
printf '    %s\n' "${summary[@]}"
exit $status
