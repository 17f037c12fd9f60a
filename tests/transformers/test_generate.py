"""`PrefixCache.generate` gives what `model.generate` gives, from as deep as it can."""

import random
import threading

import pytest
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

import tiny
from hybrid_pages import BudgetError, ForeignError, InvalidArgumentError
from hybrid_pages.transformers import CacheStore, PrefixCache
from hybrid_pages.transformers.runtime import ModelRuntime
from runs import BLOCK, GREEDY, NOISE, agree, difference, same, tensors

ALL = list(tiny.MODELS)
# Jamba in transformers goes on from a state by single tokens only, so it resumes near the end only.
FREE = [name for name in ALL if name != "jamba"]
NEW = 6


@pytest.fixture
def cache(model):
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK, verify_on_load=True) as made:
        yield made


def check(cache, ids, restored=None, new=NEW, **kwargs):
    """Generates with and without the cache: equal texts, logits within the noise."""
    before = cache.stats()
    kwargs = GREEDY | dict(max_new_tokens=new) | kwargs
    expected = cache.model.generate(ids, **kwargs)
    found = cache.generate(ids, **kwargs)
    after = cache.stats()
    assert torch.equal(found.sequences, expected.sequences)
    assert difference(found.logits, expected.logits) < NOISE
    assert after.failed_stores == 0
    assert after.uncached == before.uncached
    depth = after.restored_tokens - before.restored_tokens
    if restored is not None:
        assert depth == restored
    assert after.hits - before.hits == (depth > 0)
    return found.sequences


STATIC = [(name, None) for name in ALL]
STATIC += [(name, "static") for name in ("qwen3.5", "lfm2", "jamba", "falcon-h1", "gemma3")]


@pytest.mark.parametrize(("model", "static"), STATIC, indirect=["model"])
def test_a_resend_and_a_next_turn_are_cold_runs_continued(model, cache, static):
    kwargs = dict(cache_implementation=static, new=20)
    ids = tiny.tokens(70, 1)
    said = check(cache, ids, 0, **kwargs)
    check(cache, ids, 64, **kwargs)
    # 90 tokens were produced and 89 seen: the state of the last boundary, 80, was kept.
    check(cache, torch.cat([said, tiny.tokens(5, 2)], 1), 80, **kwargs)


@pytest.mark.parametrize("model", FREE, indirect=True)
def test_forks_get_a_state_and_are_restored_from_it(model, cache):
    shared = tiny.tokens(50, 3)
    prompts = [torch.cat([shared, tiny.tokens(60, seed)], 1) for seed in (4, 5, 6, 7)]
    check(cache, prompts[0], 0)
    # The second prompt tells that prompts part after three blocks, the third resumes there.
    check(cache, prompts[1])
    check(cache, prompts[2], 48)
    check(cache, prompts[3], 48)


@pytest.mark.parametrize("model", ALL, indirect=True)
def test_of_an_exact_multiple_one_block_less_is_restored(model, cache):
    ids = tiny.tokens(4 * BLOCK, 8)
    for _ in range(2):
        check(cache, ids)
    check(cache, ids, 3 * BLOCK)
    check(cache, torch.cat([ids, tiny.tokens(3, 9)], 1), 4 * BLOCK)


@pytest.mark.parametrize("model", ALL, indirect=True)
def test_prompts_shorter_than_a_block(model, cache):
    for length in (1, 2, BLOCK - 1, BLOCK, BLOCK + 1):
        ids = tiny.tokens(length, 200 + length)
        check(cache, ids, 0)
        check(cache, ids)
    assert cache.stats().requests == 10


@pytest.mark.parametrize("model", ALL, indirect=True)
def test_a_random_tree_of_prompts_gives_cold_texts(model, cache):
    rng = random.Random(model.config.model_type)
    known = [tiny.tokens(rng.randint(1, 60), 11)]
    for step in range(12):
        parent = rng.choice(known)
        cut = rng.randint(parent.shape[1] // 2, parent.shape[1])
        more = tiny.tokens(rng.randint(1, 40), 100 + step)
        ids = torch.cat([parent[:, :cut], more], 1)[:, :120]
        known += [ids, check(cache, ids, new=rng.randint(1, 12))]
    stats = cache.stats()
    assert stats.hits >= (1 if model.config.model_type == "jamba" else 4)
    assert stats.failed_loads == 0


@pytest.mark.parametrize("model", ["qwen3.5", "lfm2", "gemma3"], indirect=True)
def test_a_budget_for_less_than_one_prompt_gives_cold_texts(model):
    # Room for a few entries: everything evicts everything else, within a request as well.
    with CacheStore(model, host_gb=1, block_tokens=BLOCK) as store:
        slots = [store.geometry.slots_per_entry(c.index, 4096) for c in store.geometry.classes]
    room = 3 * sum(slots) * 4096 / 2**30
    with PrefixCache(model, host_gb=room, block_tokens=BLOCK) as cache:
        for seed in (12, 13, 12, 14, 12):
            check(cache, tiny.tokens(90, seed), new=20)
        index = cache.store.index.stats()
        assert index["evicted_pages"] + index["evicted_checkpoints"] + index["evicted_windows"] > 0


@pytest.mark.parametrize("model", ["qwen3.5", "lfm2", "gemma3"], indirect=True)
def test_a_prompt_that_the_budget_does_not_hold_is_counted_each_time(model):
    with CacheStore(model, host_gb=1, block_tokens=BLOCK) as store:
        classes = store.geometry.classes
        slots = [store.geometry.slots_per_entry(c.index, 4096) for c in classes]
    with PrefixCache(model, host_gb=2 * sum(slots) * 4096 / 2**30, block_tokens=BLOCK) as cache:
        ids, before = tiny.tokens(12 * BLOCK + 3, 36), 0
        for _ in range(3):
            check(cache, ids)
            skipped = cache.stats().skipped_entries
            assert skipped["no_room"] > before
            before = skipped["no_room"]
        assert cache.stats().restored_tokens < 2 * 12 * BLOCK
        # One that fits is counted no more.
        for _ in range(2):
            check(cache, tiny.tokens(BLOCK + 3, 37))
        assert cache.stats().skipped_entries == skipped


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_a_budget_for_not_even_one_entry_is_refused(model):
    for host_gb in (1e-6, 0, -1):
        with pytest.raises(BudgetError):
            PrefixCache(model, host_gb=host_gb, block_tokens=BLOCK)


CHUNKS = [(name, None) for name in FREE] + [("lfm2", "static"), ("gemma3", "static")]


@pytest.mark.parametrize("chunk", [1, 7, 16, 40, 500])
@pytest.mark.parametrize(("model", "static"), CHUNKS, indirect=["model"])
def test_a_prompt_may_be_computed_in_chunks(model, cache, static, chunk, monkeypatch):
    passes = []
    compute = ModelRuntime._pass

    def counted(self, start, end):
        passes.append(end - start)
        compute(self, start, end)

    monkeypatch.setattr(ModelRuntime, "_pass", counted)
    kwargs = dict(prefill_chunk_size=chunk, cache_implementation=static, new=12)
    ids = tiny.tokens(90, 31)
    said = check(cache, ids, 0, **kwargs)
    # All of the prompt but what `generate` computes itself, at most a chunk in one pass.
    assert max(passes) <= chunk
    assert sum(passes) >= 90 - max(chunk, BLOCK)
    check(cache, ids, 80, **kwargs)
    check(cache, torch.cat([said, tiny.tokens(50, 32)], 1), 96, **kwargs)
    # The same entries serve calls without chunks.
    check(cache, ids, 80, cache_implementation=static)


@pytest.mark.parametrize("where", ["call", "model"])
@pytest.mark.parametrize("model", ["lfm2"], indirect=True)
def test_a_config_may_ask_for_chunks(model, cache, where, monkeypatch):
    given = {}
    if where == "call":
        given["generation_config"] = GenerationConfig(prefill_chunk_size=16)
    else:
        monkeypatch.setattr(model.generation_config, "prefill_chunk_size", 16)
    ids = tiny.tokens(90, 33)
    check(cache, ids, 0, **given)
    check(cache, ids, 80, **given)


@pytest.mark.parametrize("model", ["jamba"], indirect=True)
def test_a_model_that_forgets_between_chunks_runs_without_the_cache(model, cache):
    ids = tiny.tokens(90, 34)
    for _ in range(2):
        assert agree(cache, ids, prefill_chunk_size=32) == 0
    assert cache.stats().uncached == {"prefill_chunk_size, which changes this model's caches": 2}
    assert [agree(cache, ids, prefill_chunk_size=90) for _ in range(2)] == [0, 80]


@pytest.mark.parametrize("chunk", [0, -1])
@pytest.mark.parametrize("model", ["lfm2"], indirect=True)
def test_chunks_of_no_size_are_the_callers_error(model, cache, chunk):
    ids = tiny.tokens(40, 35)
    with pytest.raises(Exception) as expected:
        model.generate(ids, prefill_chunk_size=chunk, max_new_tokens=2)
    with pytest.raises(type(expected.value)):
        cache.generate(ids, prefill_chunk_size=chunk, max_new_tokens=2)
    assert cache.stats().uncached == {f"prefill_chunk_size={chunk}": 1}


@pytest.mark.parametrize("model", ["qwen3.5", "gemma3"], indirect=True)
def test_entries_in_use_are_not_evicted(model):
    """While a prompt is being restored others want its room: it stays as it is."""
    with PrefixCache(model, host_gb=0.0005, block_tokens=BLOCK, verify_on_load=True) as cache:
        ids = tiny.tokens(70, 15)
        check(cache, ids)
        load = cache.store._staging.load

        def crowded(entries, write, *, verify):
            keys = [bytes([9, block]) * 16 for block in range(40)]
            wanted = [(c.index, b) for b in range(40) for c in cache.store.geometry.classes]
            with (
                cache.store.using("other") as namespace,
                cache.store.index.reserve(namespace, keys, wanted) as lease,
            ):
                taken = {slot for entry in lease.entries for slot in entry.slots}
                assert taken
                assert taken.isdisjoint(slot for entry in entries for slot in entry.slots)
                load(entries, write, verify=verify)

        cache.store._staging.load = crowded
        check(cache, ids, 64)


@pytest.mark.parametrize("model", ["qwen3.5", "falcon-h1"], indirect=True)
def test_a_failed_load_is_computed_again(model, cache):
    ids = tiny.tokens(70, 16)
    check(cache, ids, 0)
    arena = cache.store.arena
    for slot in range(arena.slots):
        arena.write(slot, bytes(arena.slot_bytes))
    check(cache, ids, 0)
    assert cache.stats().failed_loads == 1
    check(cache, ids, 64)


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_zeroed_checkpoints_change_the_text(model):
    """Without checksums: the comparison of this file can fail."""
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        ids = tiny.tokens(70, 17)
        check(cache, ids, 0)
        for slot in range(cache.store.arena.slots):
            cache.store.arena.write(slot, bytes(cache.store.arena.slot_bytes))
        with pytest.raises(AssertionError):
            check(cache, ids)


# ---- what generate takes and returns


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_sampling_gives_the_text_of_the_same_seed(model, cache):
    ids = tiny.tokens(70, 18)
    kwargs = dict(do_sample=True, temperature=0.8, top_k=20, max_new_tokens=12)
    texts = []
    for run in (model.generate, cache.generate, cache.generate):
        torch.manual_seed(5)
        texts.append(run(ids, **kwargs))
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])
    assert cache.stats().hits == 1


class _Collect(BaseStreamer):
    def __init__(self):
        self.pieces, self.ended = [], 0

    def put(self, value):
        self.pieces.append(value.tolist())

    def end(self):
        self.ended += 1


class _Ban(LogitsProcessor):
    def __call__(self, input_ids, scores):
        scores = scores.clone()
        scores[:, ::2] = -float("inf")
        return scores


class _StopAfter(StoppingCriteria):
    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        done = input_ids.shape[1] >= self.length
        return torch.full((input_ids.shape[0],), done, dtype=torch.bool)


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
@pytest.mark.parametrize(
    "arguments",
    [
        dict(logits_processor=LogitsProcessorList([_Ban()])),
        dict(stopping_criteria=StoppingCriteriaList([_StopAfter(75)])),
        dict(stopping_criteria=[_StopAfter(75)]),
        dict(generation_config=GenerationConfig(max_new_tokens=4, repetition_penalty=1.5)),
        dict(max_length=80),
        dict(max_new_tokens=8, eos_token_id=list(range(3, 120)), pad_token_id=0),
        dict(max_new_tokens=4, min_new_tokens=4, no_repeat_ngram_size=2),
        dict(max_new_tokens=4, attention_mask=torch.ones(1, 70, dtype=torch.long)),
        dict(max_new_tokens=4, cache_implementation="static", max_cache_len=200),
        dict(cache_implementation="static"),
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_arguments_are_passed_on(model, cache, arguments):
    ids = tiny.tokens(70, 19)
    expected = model.generate(ids, do_sample=False, **arguments)
    for _ in range(2):
        assert torch.equal(cache.generate(ids, do_sample=False, **arguments), expected)
    assert torch.equal(cache.generate(input_ids=ids, do_sample=False, **arguments), expected)
    assert (cache.stats().requests, cache.stats().hits) == (3, 2)


KINDS = [None, "dynamic", "static", "sliding_window", "hybrid", "hybrid_chunked"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_of_a_cache_that_generate_knows_gives_its_text(make, kind):
    model = make("lfm2")
    ids, kwargs = tiny.tokens(70, 33), dict(max_new_tokens=4, do_sample=False)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        expected = model.generate(ids, **kwargs)
        config = GenerationConfig(cache_implementation=kind, **kwargs)
        for arguments in (kwargs | dict(cache_implementation=kind), dict(generation_config=config)):
            assert torch.equal(model.generate(ids, **arguments), expected)
            assert torch.equal(cache.generate(ids, **arguments), expected)
        model.generation_config.cache_implementation = kind
        for arguments in (kwargs, kwargs | dict(cache_implementation=None)):
            assert torch.equal(cache.generate(ids, **arguments), expected)
        assert (cache.stats().hits, cache.stats().uncached) == (3, {})


@pytest.mark.parametrize("kind", ["offloaded", "offloaded_static", "quantized", "paged", "wrong"])
def test_caches_that_move_or_round_are_left_to_generate(make, kind):
    """Most of them need more than this machine has: then the error is the one of `generate`."""
    model, ids = make("lfm2"), tiny.tokens(40, 34)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        outcomes = []
        for run in (model.generate, cache.generate):
            try:
                found = run(ids, max_new_tokens=2, do_sample=False, cache_implementation=kind)
                outcomes.append(found.tolist())
            except Exception as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]
        assert cache.stats().requests == 0
        if kind not in ("paged", "wrong"):
            assert cache.stats().uncached == {f"cache_implementation={kind}": 1}


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_a_streamer_gets_what_it_gets_without(model, cache):
    ids, streams = tiny.tokens(70, 20), []
    for run in (model.generate, cache.generate, cache.generate):
        streams.append(_Collect())
        run(ids, max_new_tokens=5, do_sample=False, streamer=streams[-1])
    assert streams[0].pieces == streams[1].pieces == streams[2].pieces
    assert [stream.ended for stream in streams] == [1, 1, 1]


@pytest.mark.parametrize("model", ["qwen3.5", "gemma3"], indirect=True)
def test_the_returned_cache_is_the_callers(model, cache):
    ids = tiny.tokens(70, 21)
    kwargs = dict(max_new_tokens=5, do_sample=False, return_dict_in_generate=True)
    cache.generate(ids, **kwargs)
    result = cache.generate(ids, **kwargs)
    held = tensors(result.past_key_values)
    assert int(result.past_key_values.get_seq_length()) == 74
    cache.generate(tiny.tokens(90, 22), **kwargs)
    cache.generate(ids, **kwargs)
    assert same(held, tensors(result.past_key_values))


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
@pytest.mark.parametrize(
    ("reason", "arguments"),
    [
        ("more than one row", dict(inputs=tiny.tokens(40, 1).repeat(2, 1))),
        ("padding", dict(attention_mask=torch.tensor([[0] * 3 + [1] * 37]))),
        ("padding", dict(inputs=torch.tensor([[0] * 3 + [7] * 37]), pad_token_id=0)),
        ("beam_search decoding", dict(num_beams=2)),
        ("num_return_sequences", dict(do_sample=True, num_return_sequences=2)),
        ("use_cache=False", dict(use_cache=False)),
        (
            "argument output_hidden_states",
            dict(output_hidden_states=True, return_dict_in_generate=True),
        ),
        ("argument output_attentions", dict(output_attentions=True, return_dict_in_generate=True)),
        ("guidance_scale", dict(guidance_scale=1.5)),
        ("argument position_ids", dict(position_ids=torch.arange(40)[None])),
    ],
)
def test_what_cannot_use_the_cache_runs_without_it(model, cache, reason, arguments):
    arguments = dict(inputs=tiny.tokens(40, 1), max_new_tokens=4) | arguments
    results = []
    for run in (model.generate, cache.generate):
        torch.manual_seed(3)
        found = run(**arguments)
        results.append(found if isinstance(found, torch.Tensor) else found.sequences)
    assert torch.equal(*results)
    stats = cache.stats()
    assert stats.uncached == {reason: 1}
    assert (stats.requests, stats.pages, stats.checkpoints) == (0, 0, 0)


# Known report: transformers#48256.
@pytest.mark.parametrize("model", ["qwen3.5", "falcon-h1"], indirect=True)
def test_the_state_behind_padding_at_the_right_is_kept_for_nobody(model, cache):
    ids = torch.nn.functional.pad(tiny.tokens(2 * BLOCK + 3, 1), (0, 2 * BLOCK))
    mask = (torch.arange(ids.shape[1]) < 2 * BLOCK + 3).long()[None]
    for padded in (dict(attention_mask=mask), dict(pad_token_id=0)):
        kwargs = dict(max_new_tokens=4, do_sample=False) | padded
        assert torch.equal(cache.generate(ids, **kwargs), model.generate(ids, **kwargs))
    stats = cache.stats()
    assert (stats.uncached, stats.pages, stats.checkpoints) == ({"padding": 2}, 0, 0)
    # In a prompt without padding, which has these ids as tokens, another state follows them.
    check(cache, ids, 0)
    check(cache, torch.cat([ids, tiny.tokens(3, 2)], 1), 4 * BLOCK)


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_a_callers_cache_and_embeddings_run_without_it(model, cache):
    ids = tiny.tokens(40, 1)
    own = DynamicCache(config=model.config)
    expected = model.generate(ids, max_new_tokens=4, do_sample=False)
    found = cache.generate(ids, max_new_tokens=4, do_sample=False, past_key_values=own)
    assert torch.equal(found, expected)
    embeddings = model.get_input_embeddings()(ids)
    found = cache.generate(inputs_embeds=embeddings, max_new_tokens=4, do_sample=False)
    assert torch.equal(found, expected[:, 40:])
    cache.generate(max_new_tokens=2, do_sample=False, bos_token_id=1)
    assert cache.stats().uncached == {"argument past_key_values": 1, "no input_ids": 2}


def test_training_mode_runs_without_it(make):
    model = make("lfm2")
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        model.train()
        cache.generate(tiny.tokens(40, 1), max_new_tokens=2)
        assert cache.stats().uncached == {"training mode": 1}


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_errors_of_generate_are_its_own(model, cache):
    ids = tiny.tokens(40, 1)
    with pytest.raises(ValueError) as expected:
        model.generate(ids, max_length=40)
    with pytest.raises(ValueError) as found:
        cache.generate(ids, max_length=40)
    assert str(found.value) == str(expected.value)
    check(cache, ids)


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_an_error_in_the_middle_of_a_text_leaves_the_cache_usable(model, cache):
    class Failing(_Collect):
        def put(self, value):
            super().put(value)
            if len(self.pieces) == 15:
                raise RuntimeError("gone")

    ids = tiny.tokens(70, 23)
    with pytest.raises(RuntimeError, match="gone"):
        cache.generate(ids, max_new_tokens=30, do_sample=False, streamer=Failing())
    check(cache, ids, 64, new=30)


# ---- who may share what


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_salts_share_nothing(model, cache):
    ids = tiny.tokens(70, 24)
    kwargs = dict(max_new_tokens=2, do_sample=False)
    for salt, hits in (("a", 0), ("b", 0), ("a", 1), ("", 1), ("b", 2)):
        cache.generate(ids, cache_salt=salt, **kwargs)
        assert cache.stats().hits == hits


def test_changed_weights_are_noticed(make):
    model = make("qwen3.5")
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        ids = tiny.tokens(70, 25)
        check(cache, ids, 0)
        check(cache, ids, 64)
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[3, 5] += 0.5
        check(cache, ids, 0)
        check(cache, ids, 64)
        layer = model.model.layers[0].mlp
        layer.up_proj.weight = torch.nn.Parameter(layer.up_proj.weight.detach() * 1.1)
        check(cache, ids, 0)


def test_a_model_of_another_dtype_now_runs_without_it(make):
    model = make("lfm2")
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        model.to(torch.bfloat16)
        cache.generate(tiny.tokens(40, 1), max_new_tokens=2)
        assert cache.stats().uncached == {"model changed": 1}


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_a_store_is_shared_by_one_model_only(model, make):
    ids = tiny.tokens(70, 26)
    with CacheStore(model, host_gb=0.01, block_tokens=BLOCK) as store:
        with PrefixCache(model, store=store) as first:
            check(first, ids, 0)
        with PrefixCache(make("qwen3.5"), store=store) as second:
            check(second, ids, 64)
        with pytest.raises(ForeignError, match="weights"):
            PrefixCache(make("qwen3.5", seed=1), store=store)
        with pytest.raises(ForeignError, match="made for another model"):
            PrefixCache(make("lfm2"), store=store)


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_threads_take_turns(model, cache):
    prompts = [tiny.tokens(40 + 10 * number, 27) for number in range(4)]
    expected = [model.generate(ids, max_new_tokens=4, do_sample=False) for ids in prompts]
    found = {}

    def run(number):
        for _ in range(3):
            found[number] = cache.generate(prompts[number], max_new_tokens=4, do_sample=False)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[number], text) for number, text in enumerate(expected))


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_a_closed_cache_is_refused_and_a_cleared_one_is_empty(model):
    cache = PrefixCache(model, host_gb=0.01, block_tokens=BLOCK)
    ids = tiny.tokens(70, 28)
    check(cache, ids, 0)
    cache.clear()
    assert (cache.stats().pages, cache.stats().resident_bytes) == (0, 0)
    check(cache, ids, 0)
    cache.close()
    cache.close()
    with pytest.raises(InvalidArgumentError, match="found it closed"):
        cache.generate(ids)


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_stats_add_up(model, cache):
    ids = tiny.tokens(70, 29)
    check(cache, ids)
    check(cache, ids)
    stats = cache.stats()
    assert (stats.requests, stats.hits) == (2, 1)
    assert stats.prompt_tokens == 140 == stats.restored_tokens + stats.computed_tokens
    page, checkpoint = (item.entry_bytes for item in cache.store.geometry.classes)
    assert stats.restored_bytes == 4 * page + checkpoint
    assert stats.stored_bytes == stats.pages * page + stats.checkpoints * checkpoint
    assert stats.resident_bytes >= stats.stored_bytes
    assert stats.resident_bytes < stats.host_bytes
