"""Each argument of mlx-lm is served rightly, or runs without the cache and is counted."""

import threading
import warnings

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler

import tiny
from hybrid_pages import BudgetError, HybridPagesError, InvalidArgumentError, TransferError
from hybrid_pages.mlx import CacheStore, PrefixCache, UnsupportedError, read_layout
from hybrid_pages.mlx.versions import require_versions
from runs import BLOCK, agree, cold, collect, feed, require_equal

PROMPT = tiny.tokens(90)


@pytest.fixture
def cache(models, request):
    name = getattr(request, "param", "qwen3_5")
    with PrefixCache(models(name), host_gb=0.05, block_tokens=BLOCK) as made:
        collect(made.stream_generate(tiny.tokenizer(), PROMPT, 2))
        yield made


# ---- arguments


@pytest.mark.parametrize("kind", [list, mx.array, tiny.text, np.array])
def test_every_kind_of_prompt_finds_the_same_prefix(cache, tokenizer, kind):
    if kind is np.array:
        found = collect(cache.stream_generate(tokenizer, kind(PROMPT).tolist(), 4))
        require_equal(cold(cache.model, tokenizer, PROMPT, 4), found)
    else:
        assert agree(cache, tokenizer, kind(PROMPT), new=4)[0] == 80


def test_logits_processors_see_the_whole_prompt(cache, tokenizer):
    """mlx-lm's own server gives them the part that is not cached."""
    for _ in range(2):
        processors = make_logits_processors(repetition_penalty=1.6, repetition_context_size=90)
        agree(cache, tokenizer, PROMPT, new=12, logits_processors=processors)
    seen = []

    def note(tokens, logits):
        seen.append(tokens.tolist())
        return logits

    agree(cache, tokenizer, PROMPT, new=3, logits_processors=[note])
    assert seen[-3:][0][: len(PROMPT)] == PROMPT
    assert seen[len(seen) // 2 :] == seen[: len(seen) // 2]


def test_samplers_draw_the_same_numbers(cache, tokenizer):
    sampler = make_sampler(temp=0.8, top_p=0.9)
    mx.random.seed(5)
    wanted = cold(cache.model, tokenizer, PROMPT, 20, sampler=sampler)
    mx.random.seed(5)
    found = collect(cache.stream_generate(tokenizer, PROMPT, 20, sampler=sampler))
    require_equal(wanted, found)


@pytest.mark.parametrize("cache", ["qwen3_5", "recurrent_gemma", "mamba"], indirect=True)
@pytest.mark.parametrize("step", [7, 16, 64])
def test_prefill_steps(cache, tokenizer, step):
    told = []
    long = [*PROMPT, *tiny.tokens(60, seed=3)]
    for _ in range(2):
        agree(
            cache,
            tokenizer,
            long,
            prefill_step_size=step,
            prompt_progress_callback=lambda done, total: told.append((done, total)),
        )
    assert all(done <= total == len(long) for done, total in told)
    assert told[-1] == (len(long), len(long))


def test_arguments_that_say_nothing(cache, tokenizer):
    nothing = dict.fromkeys(
        [
            "draft_model",
            "input_embeddings",
            "kv_bits",
            "logits_processors",
            "max_kv_size",
            "prompt_cache",
            "prompt_progress_callback",
            "sampler",
        ]
    )
    more = dict(num_draft_tokens=2, kv_group_size=64, quantized_kv_start=7)
    assert agree(cache, tokenizer, PROMPT, **nothing, **more)[0] == 80
    assert not cache.stats().uncached


def test_every_argument_of_mlx_lm_is_known():
    """A new one would run without the cache until somebody has looked at it."""
    import inspect

    from mlx_lm.generate import generate_step, stream_generate

    from hybrid_pages.mlx.request import _HARMLESS

    names = inspect.signature(generate_step).parameters.keys()
    ours = list(inspect.signature(PrefixCache.stream_generate).parameters)
    assert ours[1:6] == list(inspect.signature(stream_generate).parameters)[1:6]
    uncached = {"prompt_cache", "kv_bits", "max_kv_size", "input_embeddings"}
    assert names - set(ours) - {"model"} == (_HARMLESS | uncached) - {
        "num_draft_tokens",
        "max_tokens",
    }


def test_a_stream_and_a_text_without_a_limit(cache, tokenizer):
    stream = mx.new_stream(mx.default_device())
    wanted = cold(cache.model, tokenizer, PROMPT, 12)[0]
    texts = cache.stream_generate(tokenizer, PROMPT, -1, None, stream)
    assert [next(texts).token for _ in wanted] == wanted
    texts.close()
    assert cache.stats().hits == 1


def test_stop_tokens_end_a_text(cache):
    """The end is the token that a cold run gives in the middle."""
    tokens = cold(cache.model, tiny.tokenizer(), PROMPT, 10)[0]
    stopping = tiny.tokenizer()
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    wrapped = TokenizerWrapper(stopping, eos_token_ids=[tokens[4]])
    assert agree(cache, wrapped, PROMPT, new=10)[0] == 80
    assert agree(cache, wrapped, [*PROMPT, *tokens[:3], 9, 8, 7])[0] >= 80


def test_generate_returns_the_text(cache, tokenizer, capsys):
    from mlx_lm import generate

    for verbose in (False, True):
        wanted = generate(cache.model, tokenizer, PROMPT, verbose, max_tokens=8)
        shown = capsys.readouterr().out
        assert cache.generate(tokenizer, PROMPT, verbose, max_tokens=8) == wanted
        mine = capsys.readouterr().out
        assert [line.split(":")[0] for line in mine.splitlines()] == [
            line.split(":")[0] for line in shown.splitlines()
        ]


def prompt_cache(model):
    return dict(prompt_cache=make_prompt_cache(model))


@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        ("prompt_cache", prompt_cache),
        ("kv_bits", lambda model: dict(kv_bits=8, kv_group_size=32, quantized_kv_start=0)),
        ("input_embeddings", lambda model: dict(input_embeddings=embeddings(model))),
    ],
)
def test_what_cannot_be_cached_runs_without_and_is_counted(cache, tokenizer, reason, arguments):
    wanted = cold(cache.model, tokenizer, PROMPT, 4, **arguments(cache.model))
    found = collect(cache.stream_generate(tokenizer, PROMPT, 4, **arguments(cache.model)))
    assert found[0] == wanted[0]
    assert cache.stats().uncached == {reason: 1}
    assert cache.stats().requests == 1


def embeddings(model):
    return model.language_model.model.embed_tokens(mx.array(PROMPT)) * 2


def test_a_caller_s_cache_is_advanced_and_not_stored(cache, tokenizer):
    own = make_prompt_cache(cache.model)
    before = cache.stats().stored_bytes
    collect(cache.stream_generate(tokenizer, PROMPT, 4, prompt_cache=own))
    assert own[1].offset == 90 + 4
    assert cache.stats().stored_bytes == before


@pytest.mark.parametrize("cache", ["qwen3"], indirect=True)
def test_draft_models_and_max_kv_size(cache, models, tokenizer):
    draft = tiny.make("qwen3", seed=3)
    wanted = cold(cache.model, tokenizer, PROMPT, 8, draft_model=draft)
    found = collect(cache.stream_generate(tokenizer, PROMPT, 8, draft_model=draft))
    assert found[0] == wanted[0]
    wanted = cold(cache.model, tokenizer, PROMPT, 8, max_kv_size=32)
    found = collect(cache.stream_generate(tokenizer, PROMPT, 8, max_kv_size=32))
    assert found[0] == wanted[0]
    assert cache.stats().uncached == {"draft_model": 1, "max_kv_size": 1}


def test_max_kv_size_has_no_effect_on_models_that_make_their_caches(cache, tokenizer):
    assert agree(cache, tokenizer, PROMPT, max_kv_size=32)[0] == 80


@pytest.mark.parametrize("cache", ["qwen3"], indirect=True)
def test_a_max_kv_size_that_drops_nothing_is_no_reason_to_compute(cache, tokenizer):
    assert agree(cache, tokenizer, PROMPT, 10, max_kv_size=100)[0] == 80
    assert agree(cache, tokenizer, PROMPT, 10, max_kv_size=99)[0] == 0
    texts = cache.stream_generate(tokenizer, PROMPT, -1, max_kv_size=1000)
    next(texts)
    texts.close()
    assert cache.stats().uncached == {"max_kv_size": 2}


def test_kv_bits_that_quantise_nothing_are_no_reason_to_compute(cache, tokenizer):
    bits = dict(kv_bits=8, kv_group_size=32)
    assert agree(cache, tokenizer, PROMPT, 10, **bits)[0] == 80
    assert agree(cache, tokenizer, PROMPT, 10, quantized_kv_start=101, **bits)[0] == 80
    assert not cache.stats().uncached
    collect(cache.stream_generate(tokenizer, PROMPT, 10, quantized_kv_start=100, **bits))
    texts = cache.stream_generate(tokenizer, PROMPT, -1, **bits)
    next(texts)
    texts.close()
    assert cache.stats().uncached == {"kv_bits": 2}


@pytest.mark.parametrize("cache", ["mamba"], indirect=True)
def test_kv_bits_have_no_effect_on_models_without_keys(cache, tokenizer):
    assert agree(cache, tokenizer, PROMPT, kv_bits=8, quantized_kv_start=0)[0] == 80


@pytest.mark.parametrize("kind", [np.array, tuple])
def test_ids_of_other_kinds_find_the_same_prefix(cache, tokenizer, kind):
    found = collect(cache.stream_generate(tokenizer, kind(PROMPT), 4))
    require_equal(cold(cache.model, tokenizer, PROMPT, 4), found)
    assert (cache.stats().hits, cache.stats().uncached) == (1, {})


def test_a_prompt_beyond_the_budget_is_counted_and_said(models, tokenizer, caplog):
    with PrefixCache(models("qwen3_5"), host_gb=0.0002, block_tokens=BLOCK) as cache:
        for count in range(1, 4):
            assert agree(cache, tokenizer, tiny.tokens(600))[0] == 0
            found = cache.stats()
            assert (found.requests, found.hits, found.failed_stores) == (count, 0, 0)
            assert found.skipped_entries["no_room"] >= count
    assert [each.message for each in caplog.records if "raise host_gb" in each.message] == [
        next(each.message for each in caplog.records if "not stored (no_room)" in each.message)
    ]


def test_hybrids_with_drafts_raise_what_mlx_lm_raises(cache, tokenizer):
    with pytest.raises(ValueError, match="trimmable"):
        collect(cache.stream_generate(tokenizer, PROMPT, 4, draft_model=cache.model))


def test_wrong_arguments_raise_what_mlx_lm_raises(cache, tokenizer):
    with pytest.raises(ValueError, match="non-zero"):
        collect(cache.stream_generate(tokenizer, PROMPT, 0))
    with pytest.raises(ValueError, match="must be provided"):
        collect(cache.stream_generate(tokenizer, [], 4))
    with pytest.raises(TypeError):
        collect(cache.stream_generate(tokenizer, PROMPT, 4, unheard_of=1))
    agree(cache, tokenizer, PROMPT)


# ---- ends


def test_a_text_that_is_left_early_is_stored_up_to_there(cache, tokenizer):
    prompt = tiny.tokens(40, seed=8)
    wanted = cold(cache.model, tokenizer, prompt, 30)[0]
    texts = cache.stream_generate(tokenizer, prompt, 30)
    taken = [next(texts).token for _ in range(25)]
    texts.close()
    assert taken == wanted[:25]
    assert agree(cache, tokenizer, [*prompt, *taken, 9, 9, 9])[0] == 64


def test_an_error_of_a_processor_leaves_the_cache_right(cache, tokenizer):
    def fail(tokens, logits):
        if len(tokens) > 95:
            raise KeyError("of the caller's")
        return logits

    with pytest.raises(KeyError):
        collect(cache.stream_generate(tokenizer, PROMPT, 30, logits_processors=[fail]))
    agree(cache, tokenizer, PROMPT, new=30)


def test_texts_in_turns(cache, tokenizer):
    prompts = [tiny.tokens(70, seed=20), [*PROMPT[:64], *tiny.tokens(20, seed=21)]]
    wanted = [cold(cache.model, tokenizer, prompt, 20)[0] for prompt in prompts]
    texts = [cache.stream_generate(tokenizer, prompt, 20) for prompt in prompts]
    found = [[], []]
    for _ in range(20):
        for each, text in zip(found, texts, strict=True):
            each.append(next(text).token)
    assert found == wanted


def test_threads(cache, tokenizer):
    """mlx computes on a stream of each thread; the pages are shared."""
    prompts = [[*PROMPT[: 30 + 10 * index], *tiny.tokens(30, seed=index)] for index in range(4)]
    wanted = [cold(cache.model, tokenizer, prompt, 20)[0] for prompt in prompts]
    found, errors = {}, []

    def work(index):
        try:
            for _ in range(3):
                found[index] = collect(cache.stream_generate(tokenizer, prompts[index], 20))[0]
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert [found[index] for index in range(4)] == wanted


# ---- the model changes


def weight(model):
    return model.language_model.model.layers[1].mlp.down_proj


def replaced(model):
    weight(model).weight = -weight(model).weight


def written(model):
    weight(model).weight[3, 5] = 9.0


def updated(model):
    weight(model).update({"weight": weight(model).weight * 1.5})


def adapter(model):
    from mlx_lm.tuner.lora import LoRALinear

    layer = model.language_model.model.layers[1]
    layer.mlp.down_proj = LoRALinear.from_base(layer.mlp.down_proj, r=4)
    layer.mlp.down_proj.lora_b = mx.random.normal(layer.mlp.down_proj.lora_b.shape)
    model.eval()


def setting(model):
    model.language_model.model.layers[1].input_layernorm.eps = 50.0


def quantised(model):
    nn.quantize(model, group_size=32, bits=4)


CHANGES = [replaced, written, updated, adapter, setting, quantised]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_model_uses_nothing_from_before(tokenizer, change):
    model = tiny.make("qwen3_5")
    with PrefixCache(model, host_gb=0.05, block_tokens=BLOCK) as cache:
        first = agree(cache, tokenizer, PROMPT)[1]
        change(model)
        restored, second = agree(cache, tokenizer, PROMPT)
        assert restored == 0
        assert second != first
        assert agree(cache, tokenizer, PROMPT)[0] == 80
        assert sum(cache.stats().changes.values()) == 1


def test_a_setting_that_comes_back_finds_its_own_again(tokenizer):
    model = tiny.make("qwen3_5")
    norm = model.language_model.model.layers[1].input_layernorm
    with PrefixCache(model, host_gb=0.05, block_tokens=BLOCK) as cache:
        for eps, restored in ((1e-5, 0), (0.5, 0), (1e-5, 80), (0.5, 80)):
            norm.eps = eps
            assert agree(cache, tokenizer, PROMPT)[0] == restored


def test_what_changes_in_the_middle_is_not_stored(tokenizer):
    model = tiny.make("qwen3_5")
    with PrefixCache(model, host_gb=0.05, block_tokens=BLOCK) as cache:
        for response in cache.stream_generate(tokenizer, PROMPT, 40):
            if response.generation_tokens == 2:
                written(model)
        assert cache.stats().changes["while computing"] == 1
        assert agree(cache, tokenizer, PROMPT)[0] == 0


def test_training_mode_runs_without(cache, tokenizer):
    cache.model.train()
    try:
        agree(cache, tokenizer, PROMPT)
    finally:
        cache.model.eval()
    assert cache.stats().uncached == {"training mode": 1}


def test_a_call_can_say_that_code_changed(cache, tokenizer):
    assert agree(cache, tokenizer, PROMPT)[0] == 80
    cache.weights_changed()
    assert agree(cache, tokenizer, PROMPT)[0] == 0


@pytest.mark.parametrize("change", [written, setting])
def test_without_a_look_a_changed_model_gives_wrong_texts(tokenizer, monkeypatch, change):
    from hybrid_pages.mlx.model_watch import ModelState, ModelWatch

    monkeypatch.setattr(ModelWatch, "look", lambda self: ModelState(""))
    monkeypatch.setattr(ModelWatch, "changed_since", lambda self, state, sampled=True: False)
    model = tiny.make("qwen3_5")
    with PrefixCache(model, host_gb=0.05, block_tokens=BLOCK) as cache:
        agree(cache, tokenizer, PROMPT)
        change(model)
        with pytest.raises(AssertionError):
            agree(cache, tokenizer, PROMPT)


# ---- copies fail


def test_damaged_bytes_are_a_miss(models, tokenizer, monkeypatch):
    from hybrid_pages.mlx.cache_io import Staging

    with PrefixCache(models("qwen3_5"), host_gb=0.05, block_tokens=BLOCK) as cache:
        agree(cache, tokenizer, PROMPT)
        load = Staging.load

        def fail(self, entries, write, *, verify):
            load(self, entries[:1], write, verify=verify)
            raise TransferError("planted")

        with monkeypatch.context() as patch:
            patch.setattr(Staging, "load", fail)
            assert agree(cache, tokenizer, PROMPT)[0] == 0
        assert cache.stats().failed_loads == 1
        agree(cache, tokenizer, PROMPT)
        assert agree(cache, tokenizer, PROMPT)[0] == 80

        def refuse(self, entries, read):
            raise TransferError("planted")

        monkeypatch.setattr(Staging, "store", refuse)
        agree(cache, tokenizer, tiny.tokens(50, seed=4))
        assert cache.stats().failed_stores > 0


# ---- what is rejected


def test_older_versions_are_rejected():
    require_versions("0.32.2", "0.32.4")
    for version in ("0.31.2", "0.31.0", "0.9"):
        with pytest.raises(UnsupportedError, match=f"mlx-lm>=0.31.3, found {version}"):
            require_versions(version, "0.32.4")
    for version in ("0.32.0", "0.32.1"):
        with pytest.raises(UnsupportedError, match=f"0.31.3 or 0.32.2, found {version}"):
            require_versions(version, "0.32.4")
    for version in ("0.31.2", "0.4", "none"):
        with pytest.raises(UnsupportedError, match=f"mlx>=0.32, found {version}"):
            require_versions("0.32.2", version)


@pytest.mark.parametrize("kind", ["QuantizedKVCache", "ChunkedKVCache", "ConcatenateKVCache"])
def test_other_kinds_of_caches_are_rejected_by_name(kind):
    from mlx_lm.models import cache as kinds

    made = getattr(kinds, kind)(**(dict(chunk_size=8) if kind == "ChunkedKVCache" else {}))
    with pytest.raises(UnsupportedError, match=kind):
        read_layout([made])


def test_caches_that_do_not_fit_are_rejected(models):
    with pytest.raises(UnsupportedError, match="keep=4"):
        read_layout(make_prompt_cache(NoMakeCache(), 16))
    model = models("qwen3_5")
    with CacheStore(model, host_gb=0.05, block_tokens=BLOCK) as store:
        used = make_prompt_cache(model)
        feed(model, used, PROMPT)
        with pytest.raises(InvalidArgumentError, match="fresh"):
            store.restore(used, PROMPT)
        with pytest.raises(InvalidArgumentError, match="90 tokens that the cache has seen"):
            store.snapshot(used, PROMPT[:-1])
        other = models("lfm2")
        foreign = make_prompt_cache(other)
        feed(other, foreign, PROMPT)
        with pytest.raises(HybridPagesError, match="expected"):
            store.snapshot(foreign, PROMPT)
        with pytest.raises(HybridPagesError, match="expected"):
            store.restore(make_prompt_cache(other), PROMPT)
        batch = make_prompt_cache(model)
        model(mx.array([PROMPT, PROMPT]), cache=batch)
        with pytest.raises(InvalidArgumentError, match="batch of 1 row"):
            store.snapshot(batch, PROMPT)


class NoMakeCache:
    layers = (0, 1)


def test_a_model_that_remembers_elsewhere_is_rejected():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny.make("lfm2")
            self.layers = self.inner.layers
            self.make_cache = self.inner.make_cache

        def __call__(self, inputs, cache=None):
            logits = self.inner(inputs, cache=cache)
            before = getattr(self, "last", 0.0)
            object.__setattr__(self, "last", before + 1.0)
            return logits * (1 + before)

    with pytest.raises(UnsupportedError, match="cannot be resumed"):
        CacheStore(Remembering(), host_gb=0.05)


def test_budgets_and_windows_are_checked(models):
    with pytest.raises(BudgetError, match="at least"):
        PrefixCache(models("qwen3_5"), host_gb=1e-6)
    with pytest.raises(InvalidArgumentError, match="sliding window of 24 tokens, found 32"):
        PrefixCache(models("baichuan_m1"), host_gb=0.05)
    with PrefixCache(models("qwen3_5"), host_gb=0.05) as cache:
        cache.close()
        with pytest.raises(InvalidArgumentError, match="closed"), warnings.catch_warnings():
            collect(cache.stream_generate(tiny.tokenizer(), PROMPT, 2))
