"""Memory that runs out while a prefix is restored or stored costs that prefix, never the text."""

import weakref

import pytest
import torch

import tiny
from hybrid_pages.transformers import PrefixCache, cache_io, generate_call, runtime, store
from hybrid_pages.transformers.compat import is_out_of_memory
from runs import BLOCK, agree

IDS = tiny.tokens(70, 51)
ERRORS = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
]


def test_what_counts_as_out_of_memory():
    assert all(map(is_out_of_memory, ERRORS))
    for error in (RuntimeError("mat1 and mat2 shapes"), ValueError("out of memory"), KeyError()):
        assert not is_out_of_memory(error)
    with pytest.raises(RuntimeError) as real:
        torch.empty(2**60)
    assert is_out_of_memory(real.value)


class Failing:
    """Stands for a function; raises in its n-th call, and in no other."""

    def __init__(self, original, error, number):
        self.original, self.error, self.number, self.calls = original, error, number, 0

    def __call__(self, *args, **kwargs):
        self.calls += 1
        if self.calls == self.number:
            raise self.error
        return self.original(*args, **kwargs)


@pytest.fixture
def cache(make):
    with PrefixCache(make("falcon-h1"), host_gb=0.01, block_tokens=BLOCK) as made:
        yield made


def idle(cache):
    """No lease is held and no slot lost."""
    now = cache.store.index.stats()
    assert (now["leased_slots"], now["writing_entries"]) == (0, 0)
    taken = cache.stats().resident_bytes // now["slot_bytes"]
    assert now["free_slots"] + taken == now["slots"]


# Where memory is taken for the cache: a place, and which of the calls there fails.
RESTORING = [
    (generate_call.GenerateCall, "_fresh", 1),
    (store._Writer, "__init__", 1),
    (store._Writer, "__call__", 1),
    (store._Writer, "__call__", 3),
    (store._Writer, "adopt", 1),
    (store.layers, "write_state", 1),
    (store.layers, "write_tokens", 2),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("where", "name", "number"), RESTORING)
def test_a_restore_that_finds_no_memory_is_an_uncached_text(
    cache, monkeypatch, where, name, number, error
):
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)
    held = cache.stats()
    failing = Failing(getattr(where, name), error, number)
    with monkeypatch.context() as patch:
        patch.setattr(where, name, lambda *args, **kwargs: failing(*args, **kwargs))
        assert agree(cache, IDS) == 0
    assert failing.calls == number
    stats = cache.stats()
    assert stats.uncached == {"out of memory while restoring": 1}
    assert (stats.requests, stats.pages) == (held.requests, held.pages)
    idle(cache)
    assert agree(cache, IDS) == 64


def test_a_prefill_that_finds_no_memory_is_an_uncached_text(cache, monkeypatch):
    failing = Failing(runtime.ModelRuntime.compute, ERRORS[1], 1)
    with monkeypatch.context() as patch:
        patch.setattr(runtime.ModelRuntime, "compute", lambda *args: failing(*args))
        assert agree(cache, IDS) == 0
    assert cache.stats().uncached == {"out of memory while prefilling": 1}
    idle(cache)
    assert (agree(cache, IDS), agree(cache, IDS)) == (0, 64)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("number", [1, 2, 5])
def test_a_store_that_finds_no_memory_is_dropped(cache, monkeypatch, number, error):
    failing = Failing(cache_io.Staging.store, error, 1)
    with monkeypatch.context() as patch:
        patch.setattr(cache_io.Staging, "store", lambda *args: failing(*args))
        agree(cache, IDS, new=40)
    assert failing.calls > 1
    assert cache.stats().failed_stores == 1
    idle(cache)
    agree(cache, IDS)
    assert agree(cache, IDS) == 64


def test_states_that_find_no_memory_while_decoding_are_not_kept(cache, monkeypatch):
    taken = Failing(torch.Tensor.clone, ERRORS[1], 1)
    with monkeypatch.context() as patch:
        keep = runtime.ModelRuntime.keep

        def without_memory(self, kept):
            patch.setattr(torch.Tensor, "clone", lambda *args, **kwargs: taken(*args, **kwargs))
            try:
                return keep(self, kept)
            finally:
                patch.setattr(torch.Tensor, "clone", taken.original)

        patch.setattr(runtime.ModelRuntime, "keep", without_memory)
        agree(cache, IDS, new=20)
    assert taken.calls == 1
    assert cache.stats().failed_stores == 1
    idle(cache)
    assert agree(cache, IDS) == 64


def test_other_errors_are_raised(cache, monkeypatch):
    agree(cache, IDS)
    failing = Failing(generate_call.GenerateCall._fresh, ZeroDivisionError("a mistake"), 1)
    monkeypatch.setattr(generate_call.GenerateCall, "_fresh", lambda *args: failing(*args))
    with pytest.raises(ZeroDivisionError):
        cache.generate(IDS, max_new_tokens=2)
    idle(cache)
    assert agree(cache, IDS) == 64


def test_what_failed_is_not_held_while_the_text_is_computed(cache, monkeypatch):
    """The memory that was taken is free again before the model starts anew."""
    agree(cache, IDS)
    tensors, alive = [], []

    def adopt(self, target):
        tensors.extend(map(weakref.ref, self._tensors.values()))
        raise torch.OutOfMemoryError("CUDA out of memory")

    kind = type(cache.model)
    generate = kind.generate

    def watched(*args, **kwargs):
        alive.append([tensor for tensor in tensors if tensor() is not None])
        return generate(*args, **kwargs)

    monkeypatch.setattr(store._Writer, "adopt", adopt)
    monkeypatch.setattr(kind, "generate", watched)
    cache.generate(IDS, max_new_tokens=2, do_sample=False)
    assert tensors
    assert alive == [[]]
