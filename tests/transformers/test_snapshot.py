"""Snapshot and restore: a restored cache continues as the one that was never gone."""

import pytest
import torch
from transformers import DynamicCache

import tiny
from hybrid_pages import ForeignError, InvalidArgumentError
from hybrid_pages.adapter.keys import Prefix
from hybrid_pages.transformers import CacheStore, UnsupportedError
from runs import (
    BLOCK,
    NOISE,
    VISIBLE,
    difference,
    feed,
    new_cache,
    same,
    tail_step,
    tensors,
)

ALL = list(tiny.MODELS)
# A static cache has room for so many tokens; the prompts are shorter.
ROOM = 128
PROMPT, BOUNDARY = 100, 96


@pytest.fixture
def store(model):
    with CacheStore(model, host_gb=0.01, block_tokens=BLOCK, verify_on_load=True) as made:
        yield made


def fill(model, store, ids, static=None):
    """Feeds a cache block after block and stores it at each boundary; the cache."""
    cache = new_cache(model, static)
    step = tail_step(model.config.model_type)
    for end in range(BLOCK, ids.shape[1] + 1, BLOCK):
        feed(model, cache, ids, end - BLOCK, end, None if end == BLOCK else step)
        store.snapshot(cache, ids[:, :end])
    return cache


@pytest.mark.parametrize("target", [None, ROOM], ids=["to-dynamic", "to-static"])
@pytest.mark.parametrize("source", [None, ROOM], ids=["from-dynamic", "from-static"])
@pytest.mark.parametrize("model", ALL, indirect=True)
def test_logits_after_a_restore_are_those_of_a_cold_run(model, store, source, target):
    ids = tiny.tokens(PROMPT, 1)
    step = tail_step(model.config.model_type)
    cold = feed(model, new_cache(model), ids, 0)
    fill(model, store, ids, source)
    cache = new_cache(model, target)
    assert store.restore(cache, ids) == BOUNDARY
    resumed = feed(model, cache, ids, BOUNDARY, None, step)
    assert difference(resumed, cold[:, BOUNDARY:]) < NOISE
    assert int(cache.get_seq_length()) == PROMPT


@pytest.mark.parametrize("static", [None, ROOM], ids=["dynamic", "static"])
@pytest.mark.parametrize("model", ALL, indirect=True)
def test_a_restored_cache_is_the_stored_one_bit_for_bit(model, store, static):
    ids = tiny.tokens(BOUNDARY + 1, 2)
    stored = fill(model, store, ids[:, :BOUNDARY], static)
    cache = new_cache(model, static)
    assert store.restore(cache, ids) == BOUNDARY
    expected, found = tensors(stored), tensors(cache)
    for index, layer in enumerate(cache.layers):
        if static and getattr(layer, "is_sliding", False):
            # Never read once a static window is full: its oldest place and this counter.
            del expected[index, "cumulative_length", ""], found[index, "cumulative_length", ""]
            for side in (expected, found):
                for name in ("keys", "values"):
                    side[index, name, ""] = side[index, name, ""][:, :, 1:]
    assert same(expected, found)


@pytest.mark.parametrize("model", ALL, indirect=True)
def test_a_static_cache_keeps_its_addresses(model, store):
    ids = tiny.tokens(PROMPT, 3)
    fill(model, store, ids)
    cache = new_cache(model, ROOM)
    feed(model, cache, tiny.tokens(20, 4), 0)
    cache.reset()

    def addresses():
        return {
            key: value.data_ptr()
            for index, layer in enumerate(cache.layers)
            for name, held in vars(layer).items()
            for key, value in (
                [((index, name, number), item) for number, item in held.items()]
                if isinstance(held, dict)
                else [((index, name), held)]
            )
            if isinstance(value, torch.Tensor)
        }

    before = addresses()
    assert len(before) >= len(cache.layers)
    cold = feed(model, new_cache(model), ids, 0)
    assert store.restore(cache, ids) == BOUNDARY
    assert addresses() == before
    step = tail_step(model.config.model_type)
    assert difference(feed(model, cache, ids, BOUNDARY, None, step), cold[:, BOUNDARY:]) < NOISE


@pytest.mark.parametrize("model", ALL, indirect=True)
def test_a_state_between_boundaries_is_not_stored(model, store):
    ids = tiny.tokens(PROMPT, 5)
    cache = new_cache(model)
    feed(model, cache, ids, 0)
    found = store.snapshot(cache, ids)
    assert store.index.stats()["checkpoints"] == 0
    has_states = any(group.kind == "recurrent" for group in store.geometry.groups)
    has_windows = any(group.kind == "window" for group in store.geometry.groups)
    if has_states:
        assert found == 0
    elif has_windows:
        # Of the windows' blocks only those that are whole: the last one or two of them.
        assert 0 < store.index.stats()["windows"] <= 3
        assert found == 0


def resumes(model, store, ids, end, target=None, cold=None):
    """A fresh cache is restored up to a token and goes on as a cold run."""
    cache = new_cache(model, target)
    assert store.restore(cache, ids) == end
    cold = feed(model, new_cache(model), ids, 0) if cold is None else cold
    assert difference(feed(model, cache, ids, end), cold[:, end:]) < NOISE


# Shorter than the window of 40 tokens, as long, longer by less than a block, and by many.
@pytest.mark.parametrize("tokens", [16, 32, 48, 64, 80, 96, 112, 256])
@pytest.mark.parametrize("target", [None, 320], ids=["to-dynamic", "to-static"])
@pytest.mark.parametrize("source", [None, 300], ids=["from-dynamic", "from-static"])
@pytest.mark.parametrize("model", ["gemma3"], indirect=True)
def test_a_cache_longer_than_its_window_is_resumed_where_it_stands(
    model, store, source, target, tokens
):
    ids = tiny.tokens(tokens + 5, 21)
    cache = new_cache(model, source)
    feed(model, cache, ids, 0, tokens)
    assert store.snapshot(cache, ids[:, :tokens]) == tokens
    resumes(model, store, ids, tokens, target)


@pytest.mark.parametrize("model", ["gemma3"], indirect=True)
def test_a_part_of_a_block_never_serves_another_boundary(model, store):
    """The blocks before one that is held in part are there: only that block's page is not whole."""
    ids = tiny.tokens(140, 22)
    fill(model, store, ids[:, :48])
    cache = new_cache(model)
    feed(model, cache, ids, 0, 96)
    assert store.snapshot(cache, ids[:, :96]) == 96
    cold = feed(model, new_cache(model), ids, 0)
    for length in (49, 60, 64, 65, 80, 81, 95, 96):
        resumes(model, store, ids[:, :length], 48, cold=cold[:, :length])
    for length in (97, 120):
        resumes(model, store, ids[:, :length], 96, cold=cold[:, :length])
    # A second one, deeper: the two together hold all whole blocks that 112 needs.
    feed(model, cache, ids, 96, 128)
    assert store.snapshot(cache, ids[:, :128]) == 128
    resumes(model, store, ids, 128, cold=cold)
    for length, end in ((128, 112), (112, 96), (96, 48)):
        resumes(model, store, ids[:, :length], end, cold=cold[:, :length])


@pytest.mark.parametrize("size", [4, 8, 13, 32, 39, 40, 64])
def test_blocks_of_any_size_are_resumed_behind_a_window(make, size):
    model, ids = make("gemma3"), tiny.tokens(5 * size + 3, 23)
    with CacheStore(model, host_gb=0.01, block_tokens=size, verify_on_load=True) as store:
        for end in (2 * size, 5 * size):
            cache = new_cache(model)
            feed(model, cache, ids, 0, end)
            assert store.snapshot(cache, ids[:, :end]) == end
            resumes(model, store, ids[:, : end + 2], end)


@pytest.mark.parametrize("model", ["gemma3"], indirect=True)
def test_what_the_window_lacks_is_not_made_up(model, store):
    ids = tiny.tokens(PROMPT, 24)
    cache = new_cache(model)
    # One token past the boundary, a dynamic window has lost the first one that 96 needs; a static
    # one has room for it.
    feed(model, cache, ids, 0, 97)
    assert store.snapshot(cache, ids[:, :97]) == 0
    assert store.restore(new_cache(model), ids) == 0
    cache = new_cache(model, ROOM)
    feed(model, cache, ids, 0, 97)
    assert store.snapshot(cache, ids[:, :97]) == 96
    resumes(model, store, ids, 96)


@pytest.mark.parametrize("how", ["zeroed", "evicted", "cleared", "salted"])
@pytest.mark.parametrize("model", ["gemma3"], indirect=True)
def test_a_packed_prefix_that_is_gone_is_a_miss(model, store, how):
    ids = tiny.tokens(PROMPT, 25)
    cache = new_cache(model)
    feed(model, cache, ids, 0, 96)
    assert store.snapshot(cache, ids[:, :96]) == 96
    if how == "zeroed":
        for slot in range(store.arena.slots):
            store.arena.write(slot, bytes(store.arena.slot_bytes))
    elif how == "evicted":
        store.index.clear()
    elif how == "cleared":
        store.clear()
    salt = "other" if how == "salted" else ""
    fresh = new_cache(model)
    before = tensors(fresh)
    assert store.restore(fresh, ids, cache_salt=salt) == 0
    assert same(before, tensors(fresh))
    assert store.moved.failed_loads == (how == "zeroed")


HELD = [(name, "attention") for name in ALL]
HELD += [(name, "recurrent") for name in ALL if name != "gemma3"]
HELD += [("gemma3", "window")]


@pytest.mark.parametrize(("model", "kind"), HELD, indirect=["model"])
@pytest.mark.parametrize("how", ["zeroed", "swapped"])
def test_wrong_bytes_show(model, kind, how):
    """The comparison of this file can fail: one wrong entry is far above the noise."""
    with CacheStore(model, host_gb=0.01, block_tokens=BLOCK, verify_on_load=False) as store:
        ids, other = tiny.tokens(PROMPT, 6), tiny.tokens(PROMPT, 7)
        fill(model, store, ids)
        fill(model, store, other)
        wanted = next(item for item in store.geometry.classes if item.kind == kind)
        corrupt(store, ids, other if how == "swapped" else None, wanted.index)
        cold = feed(model, new_cache(model), ids, 0)
        cache = new_cache(model)
        assert store.restore(cache, ids) == BOUNDARY
        step = tail_step(model.config.model_type)
        wrong = feed(model, cache, ids, BOUNDARY, None, step)
        assert difference(wrong, cold[:, BOUNDARY:]) > VISIBLE


def corrupt(store, ids, other, class_index):
    """Overwrites a prompt's last entry of a class with zeros, or with another prompt's."""

    def last(tokens):
        keys = Prefix(tokens[0], BLOCK).keys
        with (
            store.using("") as namespace,
            store.index.acquire(namespace, keys, limit=BOUNDARY // BLOCK) as lease,
        ):
            found = [entry for entry in lease.entries if entry.class_index == class_index]
            return found[-1].slots

    size = store.arena.slot_bytes
    for index, slot in enumerate(last(ids)):
        data = bytes(size) if other is None else store.arena.read(last(other)[index])
        assert data != store.arena.read(slot)
        store.arena.write(slot, data)


@pytest.mark.parametrize("model", ["qwen3.5", "gemma3"], indirect=True)
@pytest.mark.parametrize("static", [None, ROOM], ids=["dynamic", "static"])
def test_bytes_that_changed_in_memory_are_a_miss_and_leave_the_cache_alone(model, store, static):
    ids = tiny.tokens(PROMPT, 8)
    fill(model, store, ids)
    for item in store.geometry.classes:
        corrupt(store, ids, None, item.index)
    cache = new_cache(model, static)
    before = tensors(cache)
    assert store.restore(cache, ids) == 0
    assert same(before, tensors(cache))
    assert store.moved.failed_loads == 1
    # What was wrong is gone: the same prompt can be stored and restored anew.
    fill(model, store, ids)
    assert store.restore(cache, ids) == BOUNDARY


@pytest.mark.parametrize("model", ["falcon-h1"], indirect=True)
def test_a_salt_separates(model, store):
    ids = tiny.tokens(BLOCK + 1, 9)
    cache = new_cache(model)
    feed(model, cache, ids, 0, BLOCK)
    assert store.snapshot(cache, ids[:, :BLOCK], cache_salt="alice") == BLOCK
    assert store.restore(new_cache(model), ids) == 0
    assert store.restore(new_cache(model), ids, cache_salt="bob") == 0
    assert store.restore(new_cache(model), ids, cache_salt="alice") == BLOCK


def refused(store, cache, ids, error, match):
    """Restoring and storing is refused, and the cache is untouched."""
    for call in (store.restore, store.snapshot):
        before = tensors(cache)
        with pytest.raises(error, match=match):
            call(cache, ids)
        assert same(before, tensors(cache))


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_caches_of_other_models_are_refused(model, store, make):
    ids = tiny.tokens(PROMPT, 10)
    fill(model, store, ids)
    other = make("lfm2")
    refused(store, new_cache(other), ids, ForeignError, "cache layer 0|states|keys")
    half = make("qwen3.5", dtype=torch.bfloat16)
    cache = new_cache(half)
    feed(half, cache, ids, 0, BLOCK)
    refused(
        store, cache, ids[:, :BLOCK], ForeignError, "dtype: expected torch.float32, found torch.b"
    )
    cache = new_cache(half, ROOM)
    feed(half, cache, ids, 0, BLOCK)
    cache.reset()
    refused(store, cache, ids, ForeignError, "dtype")


@pytest.mark.parametrize("model", ["gemma3"], indirect=True)
def test_a_window_of_another_width_is_refused(model, store, make):
    other = make("gemma3")
    other.config.sliding_window = 80
    ids = tiny.tokens(PROMPT, 10)
    refused(store, new_cache(other), ids, ForeignError, "window of 40 tokens, found 80")


def no_restore(store, cache, ids, match):
    """A restore raises and leaves the cache as it was."""
    before = tensors(cache)
    with pytest.raises(InvalidArgumentError, match=match):
        store.restore(cache, ids)
    assert same(before, tensors(cache))


@pytest.mark.parametrize("static", [None, ROOM], ids=["dynamic", "static"])
@pytest.mark.parametrize("model", ["qwen3.5", "gemma3"], indirect=True)
def test_a_cache_that_has_seen_tokens_is_not_restored_into(model, store, static):
    ids = tiny.tokens(PROMPT, 11)
    fill(model, store, ids)
    cache = new_cache(model, static)
    feed(model, cache, ids, 0, 5)
    no_restore(store, cache, ids, "expected a fresh cache")


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_a_cropped_or_advanced_cache_is_not_stored(model, store):
    ids = tiny.tokens(PROMPT, 12)
    cache = new_cache(model)
    feed(model, cache, ids, 0, BOUNDARY)
    with pytest.raises(InvalidArgumentError, match=r"expected the 96 tokens .* found 97"):
        store.snapshot(cache, ids[:, : BOUNDARY + 1])
    recording = new_cache(model)
    recording.activate_past_recording()
    feed(model, recording, ids, 0, BOUNDARY)
    recording.crop(-BLOCK)
    with pytest.raises(UnsupportedError, match="records its past"):
        store.snapshot(recording, ids[:, : BOUNDARY - BLOCK])
    attention = next(layer for layer in cache.layers if hasattr(layer, "keys"))
    attention.crop(-BLOCK)
    with pytest.raises(InvalidArgumentError, match="expected the 80 tokens"):
        store.snapshot(cache, ids[:, :BOUNDARY])
    assert store.index.stats()["pages"] == 0


@pytest.mark.parametrize("model", ["lfm2"], indirect=True)
def test_attention_layers_at_different_tokens_are_refused(model, store):
    ids = tiny.tokens(PROMPT, 13)
    cache = new_cache(model)
    feed(model, cache, ids, 0, BOUNDARY)
    cache.layers[1].crop(-BLOCK)
    with pytest.raises(InvalidArgumentError, match="expected all attention layers at one token"):
        store.snapshot(cache, ids[:, :BOUNDARY])


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_batches_are_refused(model, store):
    ids = tiny.tokens(PROMPT, 14)
    cache = new_cache(model)
    feed(model, cache, ids.repeat(2, 1), 0, BLOCK)
    refused(store, cache, ids[:, :BLOCK], InvalidArgumentError, "a batch of 1 row, found 2")
    with pytest.raises(InvalidArgumentError, match=r"expected \[tokens\] or \[1, tokens\]"):
        store.restore(new_cache(model), ids.repeat(2, 1))


@pytest.mark.parametrize("model", ["qwen3.5", "gemma3"], indirect=True)
def test_ids_that_no_integer_of_64_bits_holds_are_refused(model, store):
    no_restore(store, new_cache(model), [2**70], "token_ids: expected integers")


@pytest.mark.parametrize("model", ["qwen3.5", "gemma3"], indirect=True)
def test_a_sequence_longer_than_a_static_cache_is_refused(model, store):
    ids = tiny.tokens(PROMPT, 15)
    fill(model, store, ids)
    cache = new_cache(model, PROMPT - 1)
    no_restore(store, cache, ids, "expected room for 100 tokens, found 99")


@pytest.mark.parametrize("model", ["qwen3.5"], indirect=True)
def test_other_kinds_of_cache_are_refused(model, store):
    class OtherCache(DynamicCache):
        pass

    with pytest.raises(UnsupportedError, match="found OtherCache"):
        store.snapshot(OtherCache(config=model.config), [1])
    offloading = new_cache(model)
    offloading.offloading = True
    with pytest.raises(UnsupportedError, match="found offloading"):
        store.snapshot(offloading, [1])
