"""Weights that hide in a model: objects, arrays and modules among attributes, shared modules."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tiny
from hybrid_pages.transformers import PrefixCache

BLOCK = 16
GIVEN = dict(max_new_tokens=8, do_sample=False)


@pytest.fixture
def model(make):
    return make("lfm2")


@pytest.fixture
def norm(model):
    """A module that runs in every pass; tests change its ``forward``."""
    return model.model.layers[0].operator_norm


def run(cache, ids, **given):
    """The text of `generate` and of the cache, from the same random numbers."""
    state = torch.get_rng_state()
    expected = cache.model.generate(ids, **GIVEN | given)
    torch.set_rng_state(state)
    before = cache.stats().restored_tokens
    assert torch.equal(cache.generate(ids, **GIVEN | given), expected)
    return cache.stats().restored_tokens - before


def changed_between(cache, change):
    """Two calls, a change, two calls: restored tokens of each."""
    ids = tiny.tokens(70, 51)
    found = [run(cache, ids), run(cache, ids)]
    change()
    return [*found, run(cache, ids), run(cache, ids)]


def rolls(norm, amount):
    """The output depends on a number that is found somewhere."""
    plain = type(norm).forward
    norm.forward = lambda states: plain(norm, states).roll(int(amount()), -1)


@pytest.mark.parametrize("kind", ["object", "nested", "array", "forward code"])
def test_what_plain_attributes_hold_is_told_apart(model, norm, kind, monkeypatch):
    if kind == "object":
        norm.args = SimpleNamespace(shift=0)
        rolls(norm, lambda: norm.args.shift)
        change = lambda: setattr(norm.args, "shift", 3)  # noqa: E731
    elif kind == "nested":
        norm.args = SimpleNamespace(inner=SimpleNamespace(shift=[0]))
        norm.args.inner.outer = norm.args
        rolls(norm, lambda: norm.args.inner.shift[0])
        change = lambda: norm.args.inner.shift.append(norm.args.inner.shift.pop() + 3)  # noqa: E731
    elif kind == "array":
        norm.shifts = np.zeros(3, dtype=np.int64)
        rolls(norm, lambda: norm.shifts[1])
        change = lambda: norm.shifts.__setitem__(1, 3)  # noqa: E731
    else:
        forward = type(norm).forward
        monkeypatch.setattr(forward, "__code__", forward.__code__)

        def doubled(self, hidden_states):
            return hidden_states * 2

        change = lambda: setattr(forward, "__code__", doubled.__code__)  # noqa: E731
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert changed_between(cache, change) == [0, 64, 0, 64]
        assert sum(cache.stats().changes.values()) >= 1


def test_a_counter_in_an_object_that_passes_read_runs_without_the_cache(model, norm):
    norm.args = SimpleNamespace(passes=0)

    def counted():
        norm.args.passes += 1
        return norm.args.passes

    rolls(norm, counted)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        for _ in range(2):
            norm.args.passes = 0
            expected = model.generate(tiny.tokens(70, 52), **GIVEN)
            norm.args.passes = 0
            assert torch.equal(cache.generate(tiny.tokens(70, 52), **GIVEN), expected)
        (reason,) = cache.stats().uncached
        assert reason.endswith("operator_norm.args is written by each forward pass")


def test_modules_that_the_model_does_not_list_are_refused(model, norm):
    plain, extra = type(norm).forward, torch.nn.Linear(norm.weight.shape[0], norm.weight.shape[0])
    norm.extra = [extra.eval()]
    norm.forward = lambda states: plain(norm, states) + norm.extra[0](states)

    def change():
        with torch.no_grad():
            extra.weight.mul_(-8)

    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert changed_between(cache, change) == [0, 0, 0, 0]
        assert list(cache.stats().uncached) == [
            "model.layers.0.operator_norm.extra.0 is a module that the model does not list"
        ]


def test_a_shared_module_that_becomes_another_is_noticed(model):
    layers = model.model.layers
    layers[2].feed_forward = layers[0].feed_forward

    def change():
        layers[2].feed_forward = layers[1].feed_forward

    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert changed_between(cache, change) == [0, 64, 0, 64]


def draw_random_numbers(norm):
    """From now on passes of more than 8 tokens draw random numbers."""
    plain = type(norm).forward

    def noisy(states):
        noise = torch.randn(()) if states.shape[1] > 8 else torch.zeros(())
        return plain(norm, states) + noise

    norm.forward = noisy


def test_long_passes_that_draw_random_numbers_are_refused(model, norm):
    draw_random_numbers(norm)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        ids = tiny.tokens(70, 53)
        assert [run(cache, ids) for _ in range(3)] == [0, 0, 0]
        assert cache.stats().uncached == {"random numbers in forward passes": 3}


@pytest.mark.parametrize("error", [IndexError, AssertionError, KeyError, AttributeError])
def test_a_model_that_fails_on_the_tokens_that_try_it_out_still_generates(model, norm, error):
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        plain = type(norm).forward

        def picky(states):
            if states.shape[1] in (2, 3):
                raise error("not so few")
            return plain(norm, states)

        norm.forward = picky
        assert run(cache, tiny.tokens(70, 54)) == 0
        (reason,) = cache.stats().uncached
        assert reason == f"the model fails on two tokens: {error.__name__}"


def test_memory_that_runs_out_in_a_look_costs_that_call(model, monkeypatch):
    ids = tiny.tokens(70, 55)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        assert [run(cache, ids), run(cache, ids)] == [0, 64]
        sampler = cache._watch._sampler
        with monkeypatch.context() as patch:
            patch.setattr(sampler, "read", lambda *args: (_ for _ in ()).throw(MemoryError()))
            assert run(cache, ids) == 0
        assert cache.stats().uncached == {"out of memory while looking at the weights": 1}
        assert run(cache, ids) == 64, "nothing is forgotten"


def test_what_one_cache_finds_random_no_other_cache_of_the_store_uses(model, norm):
    draw_random_numbers(norm)
    ids = tiny.tokens(70, 56)
    with PrefixCache(model, host_gb=0.01, block_tokens=BLOCK) as cache:
        other = PrefixCache(model, store=cache.store)
        assert [run(cache, ids), run(other, ids)] == [0, 0]
        assert other.stats().uncached == {"random numbers in forward passes": 1}
