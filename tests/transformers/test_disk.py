"""Prompts of an earlier process: restored bit for bit, or not at all."""

import copy
import functools
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
import torch

import tiny
from hybrid_pages import DiskError
from hybrid_pages.adapter.errors import SettingsError, UnsupportedError
from hybrid_pages.transformers import CacheStore, PrefixCache
from hybrid_pages.transformers.stable_names import Unnamed, stable_name
from runs import BLOCK, GREEDY

PROMPT = tiny.tokens(5 * BLOCK + 3, 1)


@pytest.fixture
def opened(tmp_path):
    """Opens caches on one directory; the one before is closed first."""
    made = []

    def opened(model, **settings):
        if made:
            made[-1].close()
        given = dict(host_gb=0.01, block_tokens=BLOCK, disk_path=tmp_path / "disk", disk_gb=0.1)
        made.append(PrefixCache(model, **(given | settings)))
        return made[-1]

    yield opened
    for cache in made:
        cache.close()


def run(cache, prompt=PROMPT, **options):
    """A result, and how many tokens of it were restored."""
    before = cache.stats().restored_tokens
    result = cache.generate(prompt, max_new_tokens=6, **GREEDY, **options)
    return result, cache.stats().restored_tokens - before


def same(left, right):
    return torch.equal(left.sequences, right.sequences) and all(
        map(torch.equal, left.logits, right.logits)
    )


@pytest.mark.parametrize("model", ["lfm2"], indirect=True)
def test_an_encrypted_prompt_is_restored_with_its_key_and_salt_alone(model, opened, tmp_path):
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    cold, _ = run(opened(model, encrypt_key=key), cache_salt="one")
    later = opened(model, encrypt_key=key)
    assert run(later, cache_salt="two")[1] == 0
    hit, restored = run(later, cache_salt="one")
    assert restored == 5 * BLOCK
    assert same(hit, cold)
    with pytest.raises(DiskError, match=r"expected encrypt_key with the key"):
        opened(model)


@pytest.mark.parametrize("model", ["qwen3.5", "lfm2", "bamba", "gemma3"], indirect=True)
def test_a_later_cache_restores_what_the_host_would(model, opened):
    first = opened(model)
    run(first)
    hit, restored = run(first)
    assert restored == 5 * BLOCK
    later = opened(copy.deepcopy(model))
    found, again = run(later)
    assert again == restored
    assert same(found, hit)
    assert later.stats().failed_loads == 0


@pytest.mark.parametrize("model", ["qwen3.5", "lfm2", "gemma3"], indirect=True)
def test_a_prompt_larger_than_the_host_comes_back_in_waves(model, opened):
    prompt = tiny.tokens(20 * BLOCK + 3, 1)
    first = opened(model)
    run(first, prompt)
    hit, restored = run(first, prompt)
    assert restored == 20 * BLOCK
    geometry = first.store.geometry
    pages = sum(item.entry_bytes for item in geometry.classes if item.kind != "recurrent")
    states = sum(item.entry_bytes for item in geometry.classes if item.kind == "recurrent")
    later = opened(copy.deepcopy(model), host_gb=(8 * pages + 2 * states) / (1 << 30))
    found, again = run(later, prompt)
    assert again == restored
    assert same(found, hit)
    assert later.store.index.restores()["waves"] > 1
    assert later.stats().failed_loads == later.stats().late_loads == 0


def test_equal_would_not_be_found_for_other_states(opened):
    model = tiny.make("qwen3.5")
    first = opened(model)
    run(first)
    hit, _ = run(first)
    with torch.no_grad():
        next(model.parameters()).view(-1)[3:2000] *= 1.5
    other, restored = run(opened(model))
    assert restored == 0
    assert not same(other, hit)


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_one_byte_of_the_weights_makes_another_model(model, opened):
    run(opened(model))
    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        kept = embedding[100, 37].item()
        embedding[100, 37] += 1e-3
    assert run(opened(model))[1] == 0
    with torch.no_grad():
        embedding[100, 37] = kept
    assert run(opened(model))[1] == 5 * BLOCK


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_where_a_model_lies_does_not_matter(model, opened, tmp_path):
    for place in ("a", "b"):
        copy.deepcopy(model).save_pretrained(tmp_path / place)  # which notes things in its config
    run(opened(type(model).from_pretrained(tmp_path / "a").eval()))
    assert run(opened(type(model).from_pretrained(tmp_path / "b").eval()))[1] == 5 * BLOCK


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_weights_that_change_in_the_process_leave_nothing_under_the_first_name(model, opened):
    cache = opened(model)
    weight = model.get_input_embeddings().weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight *= 1.5
    run(cache)
    assert run(cache)[1] == 5 * BLOCK
    with torch.no_grad():
        weight.copy_(kept)
    assert run(opened(model))[1] == 0


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_what_was_said_to_change_leaves_nothing_either(model, opened):
    cache = opened(model)
    cache.weights_changed()
    run(cache)
    assert run(opened(model))[1] == 0


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_settings_are_told_apart_across_processes(model, opened):
    run(opened(model))
    torch.use_deterministic_algorithms(True)
    try:
        cache = opened(model)
        assert run(cache)[1] == 0
    finally:
        torch.use_deterministic_algorithms(False)
    assert run(cache)[1] == 5 * BLOCK


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_salts_stay_apart(model, opened):
    run(opened(model), cache_salt="a")
    cache = opened(model)
    assert run(cache, cache_salt="b")[1] == 0
    assert run(cache, cache_salt="a")[1] == 5 * BLOCK


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_snapshots_are_found_in_their_own_process_alone(model, tmp_path):
    settings = dict(host_gb=0.01, block_tokens=BLOCK, disk_path=tmp_path / "disk", disk_gb=0.1)
    found = []
    for _ in range(2):
        with CacheStore(model, **settings) as store:
            cache = _fresh(model)
            found.append(store.restore(cache, PROMPT))
            with torch.no_grad():
                model(input_ids=PROMPT[:, : 2 * BLOCK], past_key_values=(filled := _fresh(model)))
            store.snapshot(filled, PROMPT[:, : 2 * BLOCK])
            assert store.restore(_fresh(model), PROMPT) == 2 * BLOCK
    assert found == [0, 0]


def _fresh(model):
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def test_code_without_a_version_is_refused(tmp_path):
    model = tiny.make("qwen3.5")

    class Patched(type(model.lm_head)):
        def forward(self, x):
            return super().forward(x) * 2

    model.lm_head.__class__ = Patched
    settings = dict(host_gb=0.01, block_tokens=BLOCK)
    with pytest.raises(UnsupportedError, match=r"Patched of .*test_disk, which has no version"):
        PrefixCache(model, disk_path=tmp_path / "disk", disk_gb=0.1, **settings)
    PrefixCache(model, **settings).close()


def _wrapped(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(_wrapped(len), id="a function of a test"),
        pytest.param(torch.no_grad()(_wrapped(len)), id="one in a decorator of torch"),
        pytest.param(type("Own", (), {"__module__": "own"})(), id="an object of a class of ours"),
        pytest.param(torch.ones(3), id="a tensor"),
        pytest.param(torch.Generator(), id="an object without fields"),
    ],
)
def test_what_another_process_cannot_tell_has_no_name(value):
    with pytest.raises(Unnamed):
        stable_name([value])


def test_names_differ_where_values_do():
    values = [1, 1.0, True, "1", (1,), frozenset([1]), torch.nn.SiLU, torch.nn.functional.silu, len]
    assert len({stable_name([value]) for value in values}) == len(values)


def test_partial_functions_are_named_by_what_they_hold():
    """Also behind a method: torchao puts such into the modules that it quantises."""
    dropout, silu = torch.nn.functional.dropout, torch.nn.functional.silu
    partials = [
        functools.partial(dropout, p=0.1),
        functools.partial(dropout, p=0.2),
        functools.partial(silu),
        functools.partial(silu, torch.float32),
    ]
    values = [*partials, *(types.MethodType(value, 1) for value in partials)]
    assert len({stable_name([value]) for value in values}) == len(values)


class Nameless:
    __slots__ = ()

    def __call__(self):
        pass


def test_code_of_no_known_kind_has_no_name():
    with pytest.raises(Unnamed):
        stable_name([types.MethodType(Nameless(), 1)])


def test_names_differ_where_only_constants_of_code_do():
    """Code of one package and version may be made at run time, with other numbers."""

    def compiled(text):
        made = {"__name__": "torch.nn.functional"}
        exec(text, made)
        return made["f"]

    texts = [
        "def f(x): return x * 2.0",
        "def f(x): return x * 3.0",
        "def f(x): return x[..., :2]",
        "def f(x, y=1): return x * y",
        "def f(x, y=2): return x * y",
        "def f(x): return x.exp()",
        "def f(x): return x.log()",
    ]
    assert len({stable_name([compiled(text)]) for text in texts}) == len(texts)


@pytest.mark.long
def test_another_process_gives_the_same_names(tmp_path):
    code = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import tiny
        from hybrid_pages.transformers import structure, torch_settings
        from hybrid_pages.transformers.stable_names import stable_name
        for name in ("qwen3.5", "jamba"):
            model = tiny.make(name)
            print(stable_name((structure.describe(model).key(), torch_settings.current())))
        """
    )
    found = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        for _ in range(2)
    ]
    assert found[0].returncode == 0, found[0].stderr
    lines = found[0].stdout.split()
    assert len(set(lines)) == 2 and found[1].stdout.split() == lines


def test_a_directory_has_one_user(opened, tmp_path):
    model = tiny.make("qwen3.5")
    opened(model)
    with pytest.raises(DiskError, match="expected to be its only user"):
        PrefixCache(
            model, host_gb=0.01, block_tokens=BLOCK, disk_path=tmp_path / "disk", disk_gb=0.1
        )


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_a_path_without_a_quota_is_refused(model, tmp_path):
    with pytest.raises(SettingsError, match="disk_gb: expected a quota above 0"):
        PrefixCache(model, host_gb=0.01, disk_path=tmp_path / "disk")


def test_a_state_that_gets_code_of_ours_is_counted_and_not_found_again(opened):
    model = tiny.make("qwen3.5")
    cache = opened(model)
    model.model.layers[0].hint = _wrapped(len)
    run(cache)
    assert run(cache)[1] == 5 * BLOCK
    assert any(name.startswith("unnamed: ") for name in cache.stats().changes)
    assert run(opened(tiny.make("qwen3.5")))[1] == 0
