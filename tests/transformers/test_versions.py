"""A transformers that is newer than tested: what is not understood of it runs without the cache."""

import subprocess
import sys
import textwrap

import pytest
import torch
import transformers
from transformers import DynamicCache, cache_utils

import tiny
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.session import Session
from hybrid_pages.transformers import CacheStore, PrefixCache, UnsupportedError, versions
from hybrid_pages.transformers.model_watch import ModelWatch
from hybrid_pages.transformers.runtime import ModelRuntime
from hybrid_pages.transformers.versions import TESTED, UnknownError, untested
from runs import BLOCK, agree

IDS = tiny.tokens(70, 61)
NEWER = "5.99.0"


@pytest.fixture(params=["newer", "tested"])
def version(request, monkeypatch):
    """Whether transformers is newer than tested."""
    if request.param == "newer":
        monkeypatch.setattr(transformers, "__version__", NEWER)
    monkeypatch.setattr(versions, "_warned", set())
    return request.param


@pytest.fixture
def newer(monkeypatch):
    monkeypatch.setattr(transformers, "__version__", NEWER)
    monkeypatch.setattr(versions, "_warned", set())


def opened(model, **settings):
    return PrefixCache(model, **(dict(host_gb=0.02, block_tokens=BLOCK) | settings))


def runs_uncached(model, reason, **settings):
    """Two calls with the model's own texts, both counted by one reason."""
    with opened(model, **settings) as cache:
        assert agree(cache, IDS) == agree(cache, IDS) == 0
        ((found, count),) = cache.stats().uncached.items()
        assert reason in found
        assert count == 2
        return cache.stats()


def test_the_installed_versions_are_tested_ones():
    assert untested() == []


@pytest.mark.parametrize("package", list(TESTED))
def test_what_is_newer_runs_with_one_warning(package, make, monkeypatch, caplog):
    monkeypatch.setattr(versions, "_warned", set())
    module = {"transformers": transformers, "torch": torch}[package]
    major, minor = TESTED[package][1]
    newer = f"{major}.{minor + 1}.0"
    monkeypatch.setattr(module, "__version__", newer)
    model = make("falcon-h1")
    for _ in range(2):
        with opened(model) as cache:
            assert [agree(cache, IDS), agree(cache, IDS)] == [0, 64]
            assert agree(cache, IDS, cache_implementation="static") == 64
            assert cache.stats().uncached == {}
    (record,) = caplog.records
    assert f"found {package} {newer}" in record.getMessage()
    assert versions.EXTRA in record.getMessage()


def test_another_patch_of_a_tested_version_is_tested(monkeypatch):
    major, minor = TESTED["transformers"][1]
    monkeypatch.setattr(transformers, "__version__", f"{major}.{minor}.7")
    assert untested() == []
    for unknown in (f"{major}.{minor + 1}.0.dev0", f"{major + 1}.0", "of tomorrow"):
        monkeypatch.setattr(transformers, "__version__", unknown)
        assert untested() == [f"transformers {unknown}"]


class OtherLayer(cache_utils.DynamicLayer):
    """A kind of layer that is not known; it keeps what a known one does."""


def with_layers(monkeypatch, kind):
    """The caches of all models have these layers instead of full attention."""
    made = DynamicCache.__init__

    def init(self, *args, **kwargs):
        made(self, *args, **kwargs)
        full = cache_utils.DynamicLayer
        self.layers = [kind() if type(each) is full else each for each in self.layers]

    monkeypatch.setattr(DynamicCache, "__init__", init)


def test_an_unknown_kind_of_layer_runs_uncached_with_one_warning(
    version, make, monkeypatch, caplog
):
    model = make("gemma3")
    with_layers(monkeypatch, OtherLayer)
    stats = runs_uncached(
        model, "cache layer 1: expected an attention, sliding or linear-attention"
    )
    assert (stats.requests, stats.pages, stats.host_bytes) == (0, 0, 0)
    assert sum("found OtherLayer" in record.getMessage() for record in caplog.records) == 1
    with pytest.raises(UnknownError, match="found OtherLayer"):
        CacheStore(model, host_gb=0.02, block_tokens=BLOCK)


def test_all_calls_work_without_a_store(make, monkeypatch):
    with_layers(monkeypatch, OtherLayer)
    cache = opened(make("gemma3"))
    assert cache.store is None
    cache.clear()
    cache.weights_changed()
    cache.generate(IDS, cache_salt="a", max_new_tokens=1)
    assert sum(cache.stats().uncached.values()) == 1
    cache.close()
    cache.close()


def test_mistakes_in_settings_stay_errors(version, make, monkeypatch, tmp_path):
    with_layers(monkeypatch, OtherLayer)
    for wrong in (dict(block_tokens=0), dict(disk_gb=1), dict(policy="best")):
        with pytest.raises(SettingsError):
            opened(make("gemma3"), **wrong)


def keeping_more(monkeypatch, kind):
    """Layers of a known kind keep something that no test has seen."""
    update = kind.update

    def keep(self, keys, values, *args, **kwargs):
        self.more = keys.sum() + getattr(self, "more", 0)
        return update(self, keys, values, *args, **kwargs)

    monkeypatch.setattr(kind, "update", keep)


def test_a_layer_that_keeps_more_than_is_restored_is_found(version, make, monkeypatch):
    keeping_more(monkeypatch, cache_utils.DynamicLayer)
    runs_uncached(make("qwen3.5"), "found that more would be another")


def lost(*args, **kwargs):
    raise AttributeError("no such attribute")


BROKEN = {
    "read_request": "hybrid_pages.transformers.prefix_cache.read_request",
    "regime": "hybrid_pages.transformers.prefix_cache.regime",
    "look": (ModelWatch, "look"),
    "copy_in": (ModelRuntime, "copy_in"),
    "compute": (ModelRuntime, "compute"),
    "resume": (Session, "resume"),
    "prefill": (Session, "prefill"),
}
STORING = {
    "copy_out": (ModelRuntime, "copy_out"),
    "changed": (ModelRuntime, "changed"),
    "seen": (ModelRuntime, "seen"),
    "passed": (Session, "passed"),
    "finish": (Session, "finish"),
}


def broken(monkeypatch, place):
    where = (place,) if isinstance(place, str) else place
    monkeypatch.setattr(*where, lost)


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_call_that_is_not_understood_runs_uncached(name, newer, make, monkeypatch, caplog):
    model = make("lfm2")
    with opened(model) as cache:
        agree(cache, IDS)
        caplog.clear()
        broken(monkeypatch, BROKEN[name])
        # Another prompt, which is computed; the same one, which is restored.
        for ids in (tiny.tokens(90, 62), IDS, tiny.tokens(90, 63), IDS):
            assert agree(cache, ids) in (0, 64)
        reasons = cache.stats().uncached
        assert sum(reasons.values()) >= 2
        assert all("AttributeError while" in reason for reason in reasons)
        assert len(caplog.records) == len(reasons)


@pytest.mark.parametrize("name", list(STORING))
def test_what_cannot_be_stored_costs_no_answer(name, newer, make, monkeypatch):
    model = make("lfm2")
    with opened(model) as cache:
        agree(cache, IDS)
        broken(monkeypatch, STORING[name])
        for seed in (64, 65):
            agree(cache, tiny.tokens(90, seed), new=20)
        stats = cache.stats()
        assert stats.failed_stores + sum(stats.uncached.values()) == 2


@pytest.mark.parametrize("name", [*BROKEN, *STORING])
def test_in_a_tested_version_no_error_is_swallowed(name, make, monkeypatch):
    model = make("lfm2")
    with opened(model) as cache:
        agree(cache, IDS)
        broken(monkeypatch, (BROKEN | STORING)[name])
        with pytest.raises(AttributeError):
            for ids in (tiny.tokens(90, 66), IDS):
                cache.generate(ids, max_new_tokens=20, do_sample=False)


def test_a_model_that_cannot_be_looked_at_runs_uncached(newer, make, monkeypatch):
    model = make("lfm2")
    monkeypatch.delattr(transformers.modeling_utils, "ALL_ATTENTION_FUNCTIONS")
    runs_uncached(model, "AttributeError")


def test_a_model_that_does_not_run_with_such_a_cache_runs_uncached(newer, make):
    runs_uncached(make("minimax"), "MiniMaxForCausalLM fails with ValueError")


def test_a_generate_that_takes_no_cache_by_that_name_runs_uncached(newer, make, monkeypatch):
    for module in ("generate_call", "restore_check"):
        monkeypatch.setattr(f"hybrid_pages.transformers.{module}.cache_argument", lambda: "held")
    runs_uncached(make("lfm2"), "ValueError")


def test_a_generate_that_breaks_later_runs_uncached(newer, make, monkeypatch):
    model = make("lfm2")
    with opened(model) as cache:
        agree(cache, IDS)
        monkeypatch.setattr(
            "hybrid_pages.transformers.generate_call.cache_argument", lambda: "held"
        )
        assert agree(cache, IDS) == 0
        assert cache.stats().uncached == {"ValueError while generating": 1}
        # What the caller does wrong is the caller's error.
        with pytest.raises(ValueError, match="no_such_argument"):
            cache.generate(IDS, no_such_argument=1)


def test_a_static_cache_that_is_not_restored_whole_runs_uncached(newer, make, monkeypatch):
    model = make("lfm2")
    keeping_more(monkeypatch, cache_utils.StaticLayer)
    with opened(model) as cache:
        assert [agree(cache, IDS, cache_implementation="static") for _ in range(2)] == [0, 0]
        ((reason, count),) = cache.stats().uncached.items()
        assert (count, "found that more would be another" in reason) == (2, True)
        assert [agree(cache, IDS), agree(cache, IDS)] == [0, 64]


def test_code_that_cannot_be_named_is_stored_for_this_process(newer, make, monkeypatch, tmp_path):
    model, settings = make("lfm2"), dict(disk_path=tmp_path, disk_gb=0.1)
    monkeypatch.setattr("hybrid_pages.transformers.stable_names._version", lost_name)
    for _ in range(2):
        with opened(model, **settings) as cache:
            assert [agree(cache, IDS), agree(cache, IDS)] == [0, 64]
    monkeypatch.setattr(transformers, "__version__", "{}.{}.0".format(*TESTED["transformers"][1]))
    with pytest.raises(UnsupportedError, match="disk_path: expected a model whose code has a ver"):
        opened(model, **settings)


def lost_name(module):
    from hybrid_pages.transformers.stable_names import Unnamed

    raise Unnamed(module)


@pytest.mark.any_version
@pytest.mark.parametrize(
    "names",
    [
        ["LinearAttentionAndStaticFullAttentionLayer"],
        ["StaticSlidingWindowLayer", "LinearAttentionAndStaticSlidingWindowAttentionLayer"],
    ],
)
def test_kinds_of_layers_that_are_gone_are_no_error(names):
    code = f"""
        import torch, transformers
        from transformers import cache_utils
        held = {{name: getattr(cache_utils, name) for name in {names}}}
        for name in held:
            delattr(cache_utils, name)
        import sys
        sys.path.insert(0, {str(tiny.__file__.rpartition("/")[0])!r})
        from hybrid_pages.transformers import PrefixCache
        from hybrid_pages.batch import huggingface
        for name, kind in held.items():
            setattr(cache_utils, name, kind)
        import tiny, runs
        with PrefixCache(tiny.make("lfm2"), host_gb=0.01, block_tokens=16) as cache:
            print([runs.agree(cache, tiny.tokens(70, 1)) for _ in range(2)])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "[0, 64]", done.stderr
