"""Snapshot and restore, against the cache that was snapshotted: bit for bit."""

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache, make_prompt_cache

import tiny
from hybrid_pages.mlx import CacheStore, cache_io, differences
from runs import BLOCK, VISIBLE, apart, equal, feed

REST = tiny.tokens(9, seed=5)


@pytest.fixture
def store(models, request):
    with CacheStore(
        models(request.param), host_gb=0.05, block_tokens=BLOCK, verify_on_load=True
    ) as made:
        yield models(request.param), made


def continued(model, store, ids, *, step=None):
    """The logits after a prefix, computed on, and restored; how many tokens were restored."""
    cache = make_prompt_cache(model)
    feed(model, cache, ids, step)
    assert store.snapshot(cache, ids) == len(ids)
    restored = make_prompt_cache(model)
    count = store.restore(restored, [*ids, *REST])
    expected, found = (feed(model, each, REST) for each in (cache, restored))
    alone = feed(model, cache, [11]), feed(model, restored, [11])
    assert equal(*alone)
    return expected, found, count


@pytest.mark.parametrize("store", tiny.HYBRIDS, indirect=True)
@pytest.mark.parametrize("length", [3 * BLOCK, 3 * BLOCK + 5, 7, 6 * BLOCK - 1])
def test_a_restored_cache_goes_on_as_the_first_one_did(store, length):
    model, store = store
    expected, found, count = continued(model, store, tiny.tokens(length))
    assert count == length
    assert equal(expected, found)


@pytest.mark.parametrize("store", tiny.WINDOWS, indirect=True)
@pytest.mark.parametrize("length", [tiny.WINDOW - 1, tiny.WINDOW, 2 * tiny.WINDOW + 3])
@pytest.mark.parametrize("step", [1, 7])
def test_windows_that_have_rotated_are_restored(store, length, step):
    """Decoding writes a window in place: a ring, whose first tokens are overwritten."""
    model, store = store
    ids = tiny.tokens(length)
    cache = make_prompt_cache(model)
    for end in range(0, length, step):
        feed(model, cache, ids[end : end + step])
        if step == 1:
            store.snapshot(cache, ids[: end + 1])
    expected, found, count = continued(model, store, ids, step=step)
    assert count == length
    # A ring is attended to in the order of its memory: sums differ in their last bits.
    assert apart(expected, found) < 1e-5


@pytest.mark.parametrize("store", ["qwen3_next", "baichuan_m1"], indirect=True)
def test_the_deepest_of_blocks_and_tails_is_restored(store):
    model, store = store
    ids = tiny.tokens(100)
    for length in (20, 32, 39):
        cache = make_prompt_cache(model)
        feed(model, cache, ids[:length])
        store.snapshot(cache, ids[:length])

    def restored(prompt):
        return store.restore(make_prompt_cache(model), prompt)

    assert restored(ids) == 39
    assert restored(ids[:39]) == 32
    assert restored([*ids[:38], 9, 9, 9]) == 32
    assert restored([*ids[:21], 9, 9, 9]) == 20
    assert restored(ids[:20]) == 0
    assert store.restore(make_prompt_cache(model), ids, cache_salt="other") == 0


class Latent(nn.Module):
    """Multi-head latent attention as some models cache it: keys alone, in a list with states."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(tiny.VOCAB, 8)
        self.layers = [0]

    def make_cache(self):
        return [CacheList(KVCache(), ArraysCache(2))]

    def __call__(self, inputs, cache):
        keys, states = cache[0].caches
        latent = self.embed(inputs)[:, None]
        before = mx.zeros((1, 8)) if states[0] is None else states[0]
        sums = before[:, None] + mx.cumsum(latent[:, 0], axis=1)
        states[0] = sums[:, -1]
        empty = mx.zeros((*latent.shape[:3], 0))
        latent, _ = keys.update_and_fetch(latent, empty)
        rows = mx.cumsum(latent[:, 0], axis=1)[:, -inputs.shape[1] :]
        return (rows + 2 * sums) @ self.embed.weight.T


def test_empty_segments_are_made_again():
    """What has no bytes takes no room. A slot of states that stays empty is left so."""
    mx.random.seed(0)
    model = Latent()
    model.eval()
    with CacheStore(model, host_gb=0.001, block_tokens=BLOCK, verify_on_load=True) as store:
        assert [spec.name for spec in store.layout.empty] == ["0.0.values.0"]
        for length in (2 * BLOCK, 2 * BLOCK + 3):
            expected, found, count = continued(model, store, tiny.tokens(length, seed=length))
            assert count == length
            assert equal(expected, found)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("name", tiny.made("qwen3_5", "lfm2", "olmo_hybrid"))
def test_half_precision_is_moved_bit_for_bit(name, dtype):
    model = tiny.make(name, dtype=dtype)
    with CacheStore(model, host_gb=0.05, block_tokens=BLOCK) as store:
        expected, found, _ = continued(model, store, tiny.tokens(53))
    assert expected.dtype == dtype
    assert equal(expected, found)


def test_quantised_weights(models):
    model = tiny.make("qwen3_5")
    nn.quantize(model, group_size=32, bits=4)
    with CacheStore(model, host_gb=0.05, block_tokens=BLOCK) as store:
        expected, found, count = continued(model, store, tiny.tokens(53))
    assert count == 53
    assert equal(expected, found)


# ---- the comparison can fail


def zeroed_states(monkeypatch):
    def blank(self, spec):
        return mx.zeros(spec.shape)

    monkeypatch.setattr(cache_io.Reader, "_state", blank)


def shifted_pages(monkeypatch):
    put = cache_io.Writer._put

    def shifted(self, spec, start, rows):
        # Attention does not care in which order keys come, each with its value.
        put(self, spec, start, rows[:, ::-1] if spec.kind == "keys" else rows)

    monkeypatch.setattr(cache_io.Writer, "_put", shifted)


def short(monkeypatch):
    fill = differences.fill
    monkeypatch.setattr(differences, "fill", lambda part, k, v, seen: fill(part, k, v, seen - 1))


def no_front(monkeypatch):
    monkeypatch.setattr(cache_io, "_before_window", lambda *_: (0, 0))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("qwen3_next", zeroed_states),
        ("mamba2", zeroed_states),
        ("qwen3_next", shifted_pages),
        ("recurrent_gemma", shifted_pages),
        ("lfm2", short),
        ("recurrent_gemma", no_front),
        ("baichuan_m1", no_front),
    ],
)
def test_each_fault_is_seen(models, monkeypatch, name, fault):
    model = models(name)
    with CacheStore(model, host_gb=0.05, block_tokens=BLOCK) as store:
        fault(monkeypatch)
        ids = tiny.tokens(3 * BLOCK + 5)
        cache = make_prompt_cache(model)
        feed(model, cache, ids)
        store.snapshot(cache, ids)
        restored = make_prompt_cache(model)
        store.restore(restored, [*ids, *REST])
        expected, found = (feed(model, each, REST) for each in (cache, restored))
    assert apart(expected, found) > VISIBLE
