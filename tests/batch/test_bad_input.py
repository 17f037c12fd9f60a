"""Wrong input is refused with what was expected and found, and nothing has changed."""

import pytest
import torch

from hybrid_pages import BudgetError, InvalidArgumentError
from hybrid_pages.batch import (
    AttentionCache,
    Batch,
    BlockPool,
    BlockTable,
    CompositeCache,
    ConvCache,
    PagedAttentionCache,
    PagedStorage,
    RecurrentCache,
)
from reference import HEAD, HEADS, Model, feed


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def batch(model):
    made = model.batch(3)
    feed(model, made, [[1, 2, 3], [4], []])
    return made


def contents(layer):
    parts = getattr(layer, "parts", {}).values()
    own = [None if t is None else t.clone() for t in layer.tensors.values()]
    return own + [tensor for part in parts for tensor in contents(part)]


def state(batch):
    return batch.lengths, batch.prepared, [t for layer in batch.layers for t in contents(layer)]


def refused(words, batch, call, error=InvalidArgumentError):
    lengths, prepared, tensors = state(batch)
    with pytest.raises(error, match=words):
        call()
    after = state(batch)
    assert (lengths, prepared) == after[:2]
    for old, new in zip(tensors, after[2], strict=True):
        assert old is new is None or torch.equal(old, new)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "at least one"),
        ([3], "from 0 to 2"),
        ([-1], "from 0 to 2"),
        ([1, 1], "each row once"),
        ([1.0], "whole numbers"),
        ([True, False, True], "whole numbers"),
        (torch.tensor([True, False, True]), "whole numbers"),
    ],
)
def test_rows_that_are_not_there_are_refused(batch, rows, words):
    refused(words, batch, lambda: batch.filter(rows))
    if len(rows) == 1:
        refused(words, batch, lambda: batch.extract(rows[0]))


@pytest.mark.parametrize("rows", [torch.tensor([2, 0]), (2, 0), range(2, -1, -2)])
def test_rows_may_be_given_as_any_whole_numbers(batch, rows):
    batch.filter(rows)
    assert batch.lengths == [0, 3]


@pytest.mark.parametrize("side", ["lengths", "left_padding"])
@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([1, 2], "one number for each of 3 rows"),
        ([1, 2, 3, 4], "one number for each of 3 rows"),
        ([], "one number for each of 3 rows"),
        ([1, -1, 2], "at least 0"),
        ([1, 0.5, 2], "whole numbers"),
    ],
)
def test_wrong_numbers_by_row_are_refused(batch, side, numbers, words):
    refused(words, batch, lambda: batch.prepare(**{side: numbers}))


def test_lengths_together_with_left_padding_are_refused(batch):
    refused("found both", batch, lambda: batch.prepare(lengths=[1, 1, 1], left_padding=[0, 0, 0]))
    refused("found none", batch, batch.prepare)


def test_joining_before_finalize_is_refused(model, batch):
    other = model.batch(1)
    batch.prepare(lengths=[1, 2, 0])
    refused("finalize first", batch, lambda: batch.extend(other))
    refused("finalize first", batch, lambda: other.extend(batch))
    refused("finalize first", batch, lambda: Batch.merge([other, batch]))
    refused("finalize first", batch, lambda: batch.prepare(lengths=[1, 2, 0]))


def test_lengths_longer_than_the_steps_are_refused_until_the_steps_are_made(model, batch):
    batch.prepare(lengths=[1, 3, 0])
    model.run(batch, torch.ones(3, 2, dtype=torch.int64))
    refused(r"found \[0, 1, 0\] columns missing", batch, batch.finalize)
    model.run(batch, torch.ones(3, 1, dtype=torch.int64))
    batch.finalize()
    assert batch.lengths == [4, 4, 0]


def test_left_padding_longer_than_the_steps_is_refused(model, batch):
    batch.prepare(left_padding=[0, 3, 1])
    model.run(batch, torch.ones(3, 2, dtype=torch.int64))
    refused(r"found \[0, 1, 0\] columns missing", batch, batch.finalize)


def test_finalize_without_prepare_is_refused(batch):
    refused("prepare before finalize", batch, batch.finalize)


def test_an_open_step_refuses_everything_but_its_end(model, batch):
    other = model.batch(1)
    batch.step(2)
    for call in (
        lambda: batch.step(1),
        lambda: batch.filter([0]),
        lambda: batch.extract(0),
        lambda: batch.extend(other),
        lambda: other.extend(batch),
        lambda: batch.prepare(lengths=[1, 1, 1]),
    ):
        refused("advance over it first", batch, call)
    refused("2 columns of the step", batch, lambda: batch.advance(3))


def test_a_step_without_columns_and_an_end_without_a_step_are_refused(batch):
    refused("at least 1", batch, lambda: batch.step(0))
    refused("found none", batch, lambda: batch.advance(1))


def test_no_rows_and_no_layers_are_refused():
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        AttentionCache(0)
    with pytest.raises(InvalidArgumentError, match="one number of rows"):
        Batch([])
    with pytest.raises(InvalidArgumentError, match="at least one batch"):
        Batch.merge([])
    with pytest.raises(InvalidArgumentError, match="one number of rows"):
        Batch([AttentionCache(2), RecurrentCache(3)])
    with pytest.raises(InvalidArgumentError, match="one number of rows"):
        CompositeCache({"a": AttentionCache(2), "b": RecurrentCache(3)})


def keys(size=1, heads=HEADS, columns=2, width=HEAD, dtype=torch.float32, device="cpu"):
    return torch.zeros(size, heads, columns, width, dtype=dtype, device=device)


def attention(window=None, **shape):
    return AttentionCache(1, keys(**shape), keys(**shape), window=window)


def conv(channels=4, width=3, dtype=torch.float32, channels_last=False):
    shape = (1, width, channels) if channels_last else (1, channels, width)
    return ConvCache(1, torch.zeros(shape, dtype=dtype), width=width, channels_last=channels_last)


@pytest.mark.parametrize(
    ("layer", "other", "words"),
    [
        (attention(), conv(), "of kind AttentionCache, found ConvCache"),
        (attention(), attention(heads=3), r"\(2, 8\) on cpu, found torch.float32 of \(3, 8\)"),
        (attention(), attention(width=4), r"found torch.float32 of \(2, 4\)"),
        (attention(), attention(dtype=torch.float64), "found torch.float64"),
        (attention(), attention(device="meta"), "on meta"),
        (attention(), attention(window=4), "window: expected 'all tokens', found 4"),
        (conv(), conv(channels=5), r"\(5,\)"),
        (conv(), conv(width=4), "width: expected 3, found 4"),
        (conv(), conv(channels_last=True), "channels_last"),
        (conv(), conv(dtype=torch.bfloat16), "bfloat16"),
        (
            RecurrentCache(1, torch.zeros(1, 2, 3)),
            RecurrentCache(1, torch.zeros(1, 3, 2)),
            r"\(3, 2\)",
        ),
        (CompositeCache({"a": conv()}), CompositeCache({"b": conv()}), "parts"),
        (CompositeCache({"a": conv()}), CompositeCache({"a": attention()}), "ConvCache, found"),
    ],
)
def test_rows_of_another_model_are_refused(layer, other, words):
    mine, theirs = Batch([layer], [2]), Batch([other], [2])
    refused(words, mine, lambda: mine.extend(theirs))
    refused(words, mine, lambda: Batch.merge([mine, theirs]))


def test_rows_of_another_model_are_refused_behind_rows_without_state():
    rows = [Batch([AttentionCache(1)]), Batch([attention()], [2]), Batch([AttentionCache(1)])]
    foreign = Batch([attention(heads=3)], [2])
    with pytest.raises(InvalidArgumentError, match=r"\(3, 8\)"):
        Batch.merge([*rows, foreign])


def test_another_number_of_layers_is_refused(batch):
    refused("6 layers, found 1", batch, lambda: batch.extend(Batch([attention()], [2])))


def test_lengths_that_do_not_fit_the_columns_are_refused():
    with pytest.raises(InvalidArgumentError, match="expected 3 cached columns"):
        Batch([attention(columns=2)], [3])
    with pytest.raises(InvalidArgumentError, match="expected 1 cached columns"):
        Batch([attention(columns=2, window=2)], [2])
    with pytest.raises(InvalidArgumentError, match="one number for each of 1 rows"):
        Batch([attention()], [1, 1])


@pytest.mark.parametrize(
    "wrong",
    [
        dict(size=2),
        dict(columns=2),
        dict(heads=3),
        dict(width=4),
        dict(dtype=torch.float64),
        dict(device="meta"),
    ],
)
@pytest.mark.parametrize("paged", [False, True])
def test_keys_and_values_of_another_shape_are_refused(wrong, paged):
    right = dict(size=1, columns=1)
    layer = AttentionCache(1)
    if paged:
        layer = PagedAttentionCache(PagedStorage(BlockPool(4, 2), heads=HEADS, head_dim=HEAD))
    batch = Batch([layer])
    layer.update(keys(**right), keys(**right), batch.step(1))
    batch.advance(1)
    step = batch.step(1)
    good, bad = keys(**right), keys(**{**right, **wrong})
    refused("expected", batch, lambda: layer.update(bad, bad, step))
    refused("expected", batch, lambda: layer.update(good, bad, step))
    layer.update(good, good, step)


@pytest.mark.parametrize("paged", [False, True])
def test_a_layer_is_updated_once_in_a_step(paged):
    layer = AttentionCache(1)
    if paged:
        layer = PagedAttentionCache(PagedStorage(BlockPool(4, 2), heads=HEADS, head_dim=HEAD))
    batch = Batch([layer])
    step = batch.step(1)
    one = keys(columns=1)
    layer.update(one, one, step)
    refused("once in every step|already", batch, lambda: layer.update(one, one, step))
    batch.advance(1)
    later = batch.step(1)
    refused("expected", batch, lambda: layer.update(one, one, step))
    layer.update(one, one, later)


def test_conv_and_recurrent_inputs_of_another_shape_are_refused():
    batch = Batch([conv(), RecurrentCache(1, torch.zeros(1, 2, 2))])
    step = batch.step(2)
    inputs, recurrence = batch.layers
    for wrong in (
        torch.zeros(1, 4, 3),
        torch.zeros(1, 5, 2),
        torch.zeros(2, 4, 2),
        torch.zeros(1, 4, 2, dtype=torch.float64),
        torch.zeros(4, 2),
    ):
        refused("expected", batch, lambda wrong=wrong: inputs.update(wrong, step))
    for shape, dtype in [((2, 2, 2), torch.float32), ((1, 3, 2), torch.float32)]:
        wrong = torch.zeros(shape, dtype=dtype)
        refused("expected", batch, lambda wrong=wrong: recurrence.write(wrong, step))
    with pytest.raises(InvalidArgumentError, match="float64"):
        recurrence.read((2, 2), dtype=torch.float64, device="cpu")


def test_a_state_that_is_no_state_is_refused():
    with pytest.raises(InvalidArgumentError, match="2 rows"):
        RecurrentCache(2, torch.zeros(3, 1))
    with pytest.raises(InvalidArgumentError, match="width 3"):
        ConvCache(1, torch.zeros(1, 4, 4), width=3)
    with pytest.raises(InvalidArgumentError, match="keys and values"):
        AttentionCache(1, keys(), None)


def test_a_step_without_room_is_refused_before_any_layer_changed():
    pool = BlockPool(4, 2)
    model = Model(pool=pool)
    batch = model.batch(2)
    feed(model, batch, [[1, 2, 3], [4, 5, 6]])
    rows = batch.layers[0].table.rows
    refused("found 0 of 4", batch, lambda: batch.step(3), BudgetError)
    assert batch.layers[0].table.rows == rows
    feed(model, batch, [[7], [8]])


def test_a_step_refused_by_a_later_layer_is_taken_back_in_the_earlier_ones():
    wide, narrow = BlockPool(8, 2), BlockPool(1, 2)
    storages = [PagedStorage(pool, heads=1, head_dim=1) for pool in (wide, narrow)]
    composite = CompositeCache({"wide": PagedAttentionCache(storages[0])})
    batch = Batch([composite, PagedAttentionCache(storages[1])])
    refused("found 1 of 1", batch, lambda: batch.step(3), BudgetError)
    assert (wide.free_blocks, narrow.free_blocks) == (8, 1)
    assert composite["wide"].table.lengths == [0]
    batch.step(2)


def test_tables_of_two_pools_and_rows_of_two_storages_are_refused():
    one, two = BlockPool(4, 2), BlockPool(4, 2)
    with pytest.raises(InvalidArgumentError, match="one pool"):
        BlockTable(one).join([BlockTable(two)])
    batches = [
        Batch([PagedAttentionCache(PagedStorage(pool, heads=1, head_dim=1))]) for pool in (one, one)
    ]
    refused("one storage", batches[0], lambda: batches[0].extend(batches[1]))
