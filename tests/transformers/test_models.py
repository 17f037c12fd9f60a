"""Models that are missing or not supported are rejected by name, before anything else happens."""

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
import transformers

import tiny
from hybrid_pages import InvalidArgumentError
from hybrid_pages.transformers import CacheStore, PrefixCache, UnsupportedError
from hybrid_pages.transformers.identity import model_identity
from hybrid_pages.transformers.probe import continues, read_layout
from hybrid_pages.transformers.versions import TESTED, require_version
from runs import BLOCK, agree, feed, new_cache, same, tensors


def python(code, path=None):
    """The output of a program in a process of its own, errors included."""
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=path)


def test_importing_the_package_imports_neither_torch_nor_transformers():
    done = python(
        """
        import sys, hybrid_pages
        print(sorted({"torch", "transformers"} & {name.split(".")[0] for name in sys.modules}))
        """
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.any_version
@pytest.mark.parametrize("missing", ["transformers", "torch"])
def test_a_missing_package_names_the_extra(missing):
    done = python(
        f"""
        import sys
        sys.modules["{missing}"] = None
        import hybrid_pages.transformers
        """
    )
    assert "MissingError: hybrid_pages.transformers needs" in done.stderr
    assert "pip install 'hybrid-pages[transformers]'" in done.stderr


@pytest.mark.any_version
def test_an_old_transformers_is_refused_by_version(tmp_path):
    (tmp_path / "transformers.py").write_text("__version__ = '4.57.1'\n")
    done = python("import hybrid_pages.transformers", tmp_path)
    assert "works with transformers>=" in done.stderr
    assert "found 4.57.1" in done.stderr


@pytest.mark.parametrize("version", ["4.57.1", "4.9", "3.0.2", "5.0.0", "5.14.0"])
def test_versions_before_the_first_are_refused(version):
    with pytest.raises(ImportError, match=f"found {version}"):
        require_version(version)


def test_the_installed_version_and_newer_ones_are_not():
    for version in (transformers.__version__, "5.19.0", "5.20.0.dev0", "5.100.1"):
        require_version(version)


def test_models_on_the_meta_device_are_refused():
    with torch.device("meta"):
        model = tiny.MODELS["lfm2"]()
    with pytest.raises(UnsupportedError, match="meta device"):
        PrefixCache(model, host_gb=0.01)


def test_models_with_adapters_are_refused_and_later_ones_noticed(make):
    model = make("lfm2")
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        # What PEFT sets on a model that it has changed.
        model._hf_peft_config_loaded = True
        cache.generate(tiny.tokens(40, 1), max_new_tokens=2)
        assert cache.stats().uncached == {"adapters": 1}
        with pytest.raises(UnsupportedError, match="without adapters"):
            PrefixCache(model, host_gb=0.01)


def test_what_is_no_decoder_of_text_is_refused():
    with pytest.raises(UnsupportedError, match="expected a transformers model that generates"):
        CacheStore(torch.nn.Linear(2, 2))
    config = transformers.T5Config(
        vocab_size=32, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2
    )
    with pytest.raises(UnsupportedError, match="expected a decoder of text alone"):
        CacheStore(transformers.T5ForConditionalGeneration(config))


def test_models_without_attention_are_refused():
    config = transformers.GraniteMoeHybridConfig(
        **tiny._COMMON, **tiny._MAMBA2, num_hidden_layers=2, num_local_experts=0
    )
    with pytest.raises(UnsupportedError, match="at least one attention layer"):
        CacheStore(transformers.GraniteMoeHybridForCausalLM(config).eval(), host_gb=0.01)


def test_a_window_narrower_than_a_block_is_refused(make):
    with pytest.raises(InvalidArgumentError, match="less than the sliding window of 40 tokens"):
        PrefixCache(make("gemma3"), host_gb=0.01, block_tokens=64)


@pytest.mark.parametrize("weights", ["sampled", "full"])
def test_the_identity_names_all_that_the_bytes_depend_on(make, weights):
    first = model_identity(make("qwen3.5"), weights)
    assert model_identity(make("qwen3.5"), weights) == first

    def differs(model):
        second = model_identity(model, weights)
        return {name for name in first if first[name] != second[name]}

    assert differs(make("qwen3.5", seed=1)) == {"weights"}
    assert {"dtype", "weights"} <= differs(make("qwen3.5", dtype=torch.bfloat16))
    assert {"model", "config", "weights"} <= differs(make("lfm2"))
    eager = make("qwen3.5")
    eager.set_attn_implementation("eager")
    assert "attention" in differs(eager)


def test_a_full_digest_sees_one_element(make):
    first, second = make("qwen3.5"), make("qwen3.5")
    with torch.no_grad():
        second.model.layers[0].mlp.up_proj.weight[1, 1] += 1
    assert model_identity(first, "full") != model_identity(second, "full")
    with pytest.raises(UnsupportedError, match="expected 'sampled' or 'full', found 'none'"):
        model_identity(first, "none")


def test_the_extra_asks_for_what_is_tested():
    project = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    (extra,) = re.findall(r"^transformers = (\[.*\])$", project, re.M)
    wanted = [
        f"{package}>={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"
        for package, (first, last) in TESTED.items()
    ]
    assert json.loads(extra) == wanted


def test_the_tested_versions_are_those_that_the_tests_install():
    requirements = Path(__file__).parents[2] / "requirements"
    for name, which in (("vllm-cpu.txt", 0), ("transformers-newest.txt", 1)):
        pinned = dict(re.findall(r"^([\w-]+)==([\w.]+)", (requirements / name).read_text(), re.M))
        for package, versions in TESTED.items():
            assert pinned[package].startswith("{}.{}.".format(*versions[which])), (name, package)


@pytest.mark.parametrize("name", list(tiny.PLACES))
def test_models_with_layers_that_keep_no_cache_are_restored(make, name):
    model, ids = make(name), tiny.tokens(100, 1)
    with PrefixCache(model, host_gb=0.05, block_tokens=BLOCK) as cache:
        assert [agree(cache, ids), agree(cache, ids)] == [0, 96]
        assert agree(cache, ids, cache_implementation="static") == 96
        assert cache.stats().uncached == {}
    with CacheStore(model, host_gb=0.05, block_tokens=BLOCK) as store:
        held = new_cache(model)
        feed(model, held, ids[:, :96], 0)
        assert store.snapshot(held, ids[:, :96]) == 96
        fresh = new_cache(model)
        assert store.restore(fresh, ids) == 96
        assert same(tensors(held), tensors(fresh))


@pytest.mark.parametrize("kind", [PrefixCache, CacheStore])
def test_a_model_with_a_cache_of_its_own_is_refused(make, kind):
    with pytest.raises(
        UnsupportedError, match=r"DynamicCache, found that MiniMaxForCausalLM fails with ValueError"
    ):
        kind(make("minimax"), host_gb=0.01, block_tokens=BLOCK)


@pytest.mark.parametrize("name", list(tiny.MODELS))
def test_only_jamba_goes_on_by_single_tokens(make, name):
    model = make(name)
    assert continues(model, read_layout(model, BLOCK, {})) == (name != "jamba")
