"""Rows of real Hugging Face models in one batch give the logits of each row alone.

Alone means one forward pass over all tokens of a row, without a cache. float32: the allowance is
the rounding of other shapes; what a wrong state does is shown to be a thousand times that.
"""

import functools

import pytest
import torch
from torch.nn import functional
from transformers import (
    DynamicCache,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    StaticCache,
)
from transformers.cache_utils import DynamicLayer

import tiny
from hybrid_pages import InvalidArgumentError
from hybrid_pages.batch import Batch, LayerCache
from hybrid_pages.batch.huggingface import (
    from_transformers,
    model_inputs,
    prefill_inputs,
    to_transformers,
)
from hybrid_pages.batch.rope import check_frequencies

ALLOWANCE = 3e-4
LENGTHS = (70, 3, 21)
# Nemotron-H and Gemma 4 have layers that keep no cache.
MODELS = ["qwen3.5", "lfm2", "gemma3", "falcon-h1", "bamba", "nemotron-h", "gemma4"]
# Those of transformers 5.19 start anew when they are given several tokens after a state.
ONE_BY_ONE = ["jamba", "zamba", "mamba"]
model = functools.cache(tiny.make)


def tokens(*lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, tiny.VOCAB, (n,), generator=generator) for n in lengths]


def forward(lm, ids, cache, **inputs):
    name = "cache_params" if lm.config.model_type == "mamba" else "past_key_values"
    with torch.no_grad():
        return lm(ids, **{name: cache}, **inputs).logits


def prefilled(lm, row):
    cache = DynamicCache(config=lm.config)
    if len(row):
        forward(lm, row[None], cache)
    return from_transformers(cache, [len(row)])


def advance(lm, batch, ids):
    """`ids` [rows, columns] into every row; the logits and the batch after it."""
    cache = to_transformers(batch, lm.config)
    inputs = model_inputs(batch.lengths, ids.shape[1])
    if lm.config.model_type == "mamba":
        del inputs["attention_mask"]
    logits = forward(lm, ids, cache, **inputs)
    return logits, from_transformers(cache, [n + ids.shape[1] for n in batch.lengths])


def deviation(lm, logits, rows):
    """The largest deviation from each row alone."""
    found = []
    for row, out in zip(rows, logits, strict=True):
        with torch.no_grad():
            alone = lm(row[None]).logits[0, -len(out) :]
        found.append((out - alone).abs().max().item())
    return max(found)


def grown(rows, ids):
    return [torch.cat([row, new]) for row, new in zip(rows, ids, strict=True)]


@pytest.mark.parametrize("name", MODELS + ONE_BY_ONE)
def test_rows_come_and_go_and_every_row_is_as_alone(name):
    lm, rows = model(name), tokens(*LENGTHS)
    batch = Batch.merge([prefilled(lm, row) for row in rows])
    for _ in range(2):
        ids = torch.stack(tokens(1, 1, 1, seed=1))
        logits, batch = advance(lm, batch, ids)
        rows = grown(rows, ids)
        assert deviation(lm, logits, rows) < ALLOWANCE
    batch.filter([2, 1])
    rows = [rows[2], rows[1]]
    (new,) = tokens(40, seed=2)
    batch.extend(prefilled(lm, new))
    rows.append(new)
    batch.extend(prefilled(lm, tokens(0)[0]))
    rows.append(tokens(0)[0])
    assert batch.lengths == [23, 5, 40, 0]
    ids = torch.stack(tokens(1, 1, 1, 1, seed=3))
    logits, batch = advance(lm, batch, ids)
    rows = grown(rows, ids)
    assert deviation(lm, logits, rows) < ALLOWANCE
    row = batch.extract(1)
    ids = torch.stack(tokens(1, seed=4))
    logits, _ = advance(lm, row, ids)
    assert deviation(lm, logits, grown([rows[1]], ids)) < ALLOWANCE


def deviation_of_five_more(name):
    lm, rows = model(name), tokens(*LENGTHS)
    batch = Batch.merge([prefilled(lm, row) for row in rows])
    ids = torch.stack(tokens(5, 5, 5, seed=1))
    logits, _ = advance(lm, batch, ids)
    return deviation(lm, logits, grown(rows, ids))


@pytest.mark.parametrize("name", MODELS)
def test_the_same_number_of_tokens_for_every_row_is_exact(name):
    assert deviation_of_five_more(name) < ALLOWANCE


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_several_tokens_after_a_state_are_not_exact_in_some_models(name):
    assert deviation_of_five_more(name) > 1000 * ALLOWANCE


@pytest.mark.parametrize("name", MODELS + ONE_BY_ONE)
def test_new_rows_padded_at_the_left_are_exact(name):
    lm, rows = model(name), tokens(*LENGTHS)
    ids = torch.stack([functional.pad(row, (max(LENGTHS) - len(row), 0)) for row in rows])
    cache = DynamicCache(config=lm.config)
    logits = forward(lm, ids, cache, **prefill_inputs(LENGTHS))
    assert deviation(lm, logits[:, -1:], rows) < ALLOWANCE
    batch = from_transformers(cache, LENGTHS)
    batch.filter([1, 2])
    ids = torch.stack(tokens(1, 1, seed=1))
    logits, _ = advance(lm, batch, ids)
    assert deviation(lm, logits, grown(rows[1:], ids)) < ALLOWANCE


def test_inputs_of_new_rows_count_positions_behind_the_padding():
    inputs = prefill_inputs([4, 1])
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 0, 0, 1]]
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 3], [0, 0, 0, 0]]
    for lengths, words in (([], "at least 1"), ([0, 0], "longest row"), ([3, -1], "at least 0")):
        with pytest.raises(InvalidArgumentError, match=words):
            prefill_inputs(lengths)


def test_mamba_takes_the_mask_for_one_of_the_new_tokens():
    """Why it is given none: see the module."""
    lm, rows = model("mamba"), tokens(*LENGTHS)
    batch = Batch.merge([prefilled(lm, row) for row in rows])
    ids = torch.stack(tokens(1, 1, 1, seed=1))
    logits = forward(lm, ids, to_transformers(batch, lm.config), **model_inputs(LENGTHS))
    assert deviation(lm, logits, grown(rows, ids)) > 1000 * ALLOWANCE


def roped(kind, **more):
    """A model whose frequencies change beyond 64 tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tiny.VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0, **more},
    )
    return LlamaForCausalLM(config).eval()


LONGROPE = {
    "short_factor": [1.0] * 8,
    "long_factor": [4.0] * 8,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("kind", "more", "refused", "exact"),
    [
        ("longrope", LONGROPE, [(100, 20), (64, 63)], [(63, 20), (100, 65)]),
        ("dynamic", {}, [(100, 20), (100, 70), (63, 20)], [(62, 20), (63, 63)]),
    ],
)
def test_rows_that_need_other_frequencies_than_the_longest_are_refused(kind, more, refused, exact):
    lm = roped(kind, **more)
    for lengths in refused:
        batch = Batch.merge([prefilled(lm, row) for row in tokens(*lengths)])
        with pytest.raises(InvalidArgumentError, match=rf"{kind}.*{lengths[1]}\]; split"):
            to_transformers(batch, lm.config)
        for row in range(2):
            to_transformers(batch.extract(row), lm.config)
    for lengths in exact:
        rows, ids = tokens(*lengths), torch.stack(tokens(1, 1, seed=1))
        batch = Batch.merge([prefilled(lm, row) for row in rows])
        logits, _ = advance(lm, batch, ids)
        assert deviation(lm, logits, grown(rows, ids)) < ALLOWANCE


@pytest.mark.parametrize(("kind", "more"), [("longrope", LONGROPE), ("dynamic", {})])
def test_the_frequencies_of_one_type_of_layers_count(kind, more):
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    long = roped(kind, **more).config.rope_parameters
    config = Gemma3TextConfig(
        max_position_embeddings=64,
        head_dim=16,
        rope_parameters={"sliding_attention": plain, "full_attention": long},
    )
    with pytest.raises(InvalidArgumentError, match=kind):
        check_frequencies(config, [100, 20])
    config.rope_parameters["full_attention"] = plain
    check_frequencies(config, [100, 20])


@pytest.mark.parametrize("name", ["qwen3.5", "lfm2", "falcon-h1", "bamba", *ONE_BY_ONE])
def test_a_wrong_state_shows(name):
    lm, rows = model(name), tokens(*LENGTHS)
    batch = Batch.merge([prefilled(lm, row) for row in rows])
    ids = torch.stack(tokens(1, 1, 1, seed=1))
    for layer in batch.layers:
        for part in layer.parts.values():
            if type(part) is LayerCache:
                part.tensors = {
                    name: None if state is None else state.roll(1, 0)
                    for name, state in part.tensors.items()
                }
    logits, _ = advance(lm, batch, ids)
    assert deviation(lm, logits, grown(rows, ids)) > 1000 * ALLOWANCE


def test_padding_amid_rows_with_a_state_is_not_exact_in_the_models():
    """Why rows of different numbers of tokens are not put into one step: see the module."""
    lm, rows = model("qwen3.5"), tokens(30, 20)
    batch = Batch.merge([prefilled(lm, row) for row in rows])
    ids = torch.stack(tokens(4, 4, seed=1))
    inputs = model_inputs(batch.lengths, 4)
    inputs["attention_mask"][1, 30:32] = 0
    inputs["position_ids"][1] -= 2
    with torch.no_grad():
        logits = lm(ids, past_key_values=to_transformers(batch, lm.config), **inputs).logits
    assert deviation(lm, logits[:1], grown(rows[:1], ids[:1])) < ALLOWANCE
    assert deviation(lm, logits[1:, 2:], grown(rows[1:], ids[1:, 2:])) > 1000 * ALLOWANCE


def test_neither_side_sees_what_the_other_does():
    lm, (row,) = model("qwen3.5"), tokens(20)
    batch = prefilled(lm, row)
    cache = to_transformers(batch, lm.config)
    ids = torch.stack(tokens(1, seed=1))
    first, _ = advance(lm, batch, ids)
    for _ in range(3):
        with torch.no_grad():
            lm(ids, past_key_values=cache)
    again, _ = advance(lm, batch, ids)
    assert torch.equal(first, again)
    for layer in cache.layers:
        for state in (getattr(layer, "keys", None), *getattr(layer, "conv_states", {}).values()):
            if state is not None:
                state.fill_(torch.nan)
    again, _ = advance(lm, batch, ids)
    assert torch.equal(first, again)


def test_an_unused_cache_gives_empty_rows():
    lm = model("falcon-h1")
    empty = from_transformers(DynamicCache(config=lm.config))
    assert (empty.size, empty.lengths) == (1, [0])
    three = from_transformers(DynamicCache(config=lm.config), [0, 0, 0])
    assert (three.size, three.lengths) == (3, [0, 0, 0])
    assert to_transformers(three, lm.config).get_seq_length() == 0


def test_a_layer_that_has_not_begun_to_keep_anything_is_not_taken_for_one_that_keeps_nothing():
    class Other(DynamicLayer):
        pass

    lm = model("qwen3.5")
    cache = DynamicCache(config=lm.config)
    cache.layers[3] = Other()
    with pytest.raises(InvalidArgumentError, match="found Other"):
        from_transformers(cache)


def test_caches_of_another_kind_are_refused():
    lm, (row,) = model("lfm2"), tokens(9)
    with pytest.raises(InvalidArgumentError, match=r"expected a DynamicCache.*found StaticCache"):
        from_transformers(StaticCache(config=lm.config, max_cache_len=16))
    cache = DynamicCache(config=lm.config)
    with torch.no_grad():
        lm(row[None], past_key_values=cache)
    for lengths, words in (
        ([8], "9 columns"),
        ([10], "9 columns"),
        ([9, 9], "each of 1 rows"),
        ([-9], "at least 0"),
        ([], "each of 1 rows"),
    ):
        with pytest.raises(InvalidArgumentError, match=words):
            from_transformers(cache, lengths)
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        from_transformers(DynamicCache(config=lm.config), [])
    # Cropped in one layer: its tokens are gone.
    cache.layers[3].crop(-2)
    with pytest.raises(InvalidArgumentError, match="one length"):
        from_transformers(cache)
    cache.activate_past_recording()
    with pytest.raises(InvalidArgumentError, match="recorded past"):
        from_transformers(cache)
    cache.offloading = True
    with pytest.raises(InvalidArgumentError, match="offloaded"):
        from_transformers(cache)


def test_rows_of_another_model_are_refused():
    (row,) = tokens(9)
    qwen, lfm = (prefilled(model(name), row) for name in ("qwen3.5", "lfm2"))
    with pytest.raises(InvalidArgumentError, match="layer 0 is of another structure"):
        to_transformers(lfm, model("gemma3").config)
    with pytest.raises(InvalidArgumentError, match="batch of 2 layers, found 4"):
        to_transformers(qwen, model("falcon-h1").config)
    lengths = qwen.lengths
    with pytest.raises(InvalidArgumentError, match="expected"):
        qwen.extend(lfm)
    assert qwen.lengths == lengths
    qwen.prepare(lengths=[1])
    with pytest.raises(InvalidArgumentError, match="finalize first"):
        to_transformers(qwen, model("qwen3.5").config)
