"""A layer that is read and written into a fresh one goes on as the first one, of every kind."""

import pytest
import torch
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionAndStaticFullAttentionLayer,
    LinearAttentionAndStaticSlidingWindowAttentionLayer,
    LinearAttentionLayer,
    StaticIndexedLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

from hybrid_pages.transformers import UnsupportedError, layers

ROOM, WINDOW, KERNEL = 64, 9, 4
KINDS = {
    "dynamic": lambda: DynamicLayer(),
    "dynamic-window": lambda: DynamicSlidingWindowLayer(WINDOW),
    "static": lambda: StaticLayer(ROOM),
    "static-window": lambda: StaticSlidingWindowLayer(ROOM, WINDOW),
    "states": lambda: LinearAttentionLayer(),
    "two-states": lambda: LinearAttentionLayer(number_of_states=2),
    "both": lambda: LinearAttentionAndFullAttentionLayer(),
    "both-window": lambda: LinearAttentionAndSlidingWindowAttentionLayer(WINDOW),
    "both-static": lambda: LinearAttentionAndStaticFullAttentionLayer(ROOM),
    "both-static-window": lambda: LinearAttentionAndStaticSlidingWindowAttentionLayer(ROOM, WINDOW),
}


def advance(layer, count, seed):
    """Gives a layer the same tokens as every layer of that seed; what it answers."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randn(1, 2, count, 3, generator=generator)
    values = torch.randn(1, 2, count, 5, generator=generator)
    conv = torch.randn(1, 6, count, generator=generator)
    found = []
    if layers.has_tokens(layer):
        sizes = torch.tensor(layer.get_mask_sizes(count))
        found += [sizes, *(tensor.clone() for tensor in layer.update(keys, values))]
    if layers.has_states(layer):
        for index in range(layer.number_of_states):
            full = layer.update_conv_state(conv + index, index, conv_kernel_size=KERNEL)
            found.append(full.clone())
            old = layer.recurrent_states[index]
            new = conv.sum(-1) + index if old is None else 0.5 * old + conv.sum(-1)
            found.append(layer.update_recurrent_state(new, index).clone())
    return found


@pytest.mark.parametrize("steps", [(5,), (1, 1, 7), (8, 8), (3, 20, 1), (8, 8, 8, 1, 1)], ids=str)
@pytest.mark.parametrize("more", [(1, 1, 1), (4, 1), (12, 1, 3)], ids=str)
@pytest.mark.parametrize("reset", [False, True], ids=["new", "reset"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_what_is_written_goes_on_like_what_was_read(kind, steps, more, reset):
    first, second = KINDS[kind](), KINDS[kind]()
    layers.require_known(0, first)
    if reset:
        advance(second, 11, 999)
        second.reset()
    for number, count in enumerate(steps):
        advance(first, count, number)
    assert layers.is_fresh(second)
    if layers.has_tokens(first):
        held = layers.tokens(first)
        assert held.seen == sum(steps)
        assert held.seen - held.first == held.keys.shape[2] == held.values.shape[2]
        # A window is restored from blocks that may begin with the first token it still sees.
        least = WINDOW - 1 if layers.is_window(first) else held.seen
        keys, values = held.keys[:, :, -least:], held.values[:, :, -least:]
        layers.write_tokens(second, keys.clone(), values.clone(), held.seen)
        assert layers.seen(second) == sum(steps)
    if layers.has_states(first):
        for (name, index), state in layers.states(first).items():
            layers.write_state(second, name, index, state.clone())
    assert not layers.is_fresh(second)
    for number, count in enumerate(more):
        expected, found = advance(first, count, 50 + number), advance(second, count, 50 + number)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_layers_with_more_than_this_module_moves_are_refused():
    with pytest.raises(UnsupportedError, match=r"cache layer 3: .* found StaticIndexedLayer"):
        layers.require_known(3, StaticIndexedLayer(ROOM))
