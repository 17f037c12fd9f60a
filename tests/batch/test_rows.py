"""Rows and their metadata: sizes, places, contiguity, lives of layers, faults known elsewhere."""

import pytest
import torch

from hybrid_pages.batch import (
    AttentionCache,
    Batch,
    CompositeCache,
    ConvCache,
    LayerCache,
    RecurrentCache,
)
from reference import HEAD, HEADS, KINDS, TAPS, WIDTH, AverageCache, Model, difference, feed

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
        ],
    ),
]


def tensors(layer):
    own = [tensor for tensor in layer.tensors.values() if tensor is not None]
    return own + [t for part in getattr(layer, "parts", {}).values() for t in tensors(part)]


@pytest.fixture
def model():
    return Model()


def rows_of(model, *lengths):
    """One batch a row, with so many tokens; none at all for 0."""
    made = [model.batch() for _ in lengths]
    for batch, length in zip(made, lengths, strict=True):
        if length:
            feed(model, batch, [list(range(length))])
    return made


def test_vllm_mlx_160_the_size_is_known_on_every_branch(model):
    """A size left out where no row had a state made an endless loop of errors (vllm-mlx #160)."""
    empty = Batch.merge(rows_of(model, 0, 0, 0))
    assert [layer.size for layer in empty.layers] == [3] * 6
    empty.extend(Batch.merge(rows_of(model, 0, 4)))
    assert [layer.size for layer in empty.layers] == [5] * 6
    assert [layer.size for layer in empty.extract(2).layers] == [1] * 6
    empty.filter([4, 0])
    assert [layer.size for layer in empty.layers] == [2] * 6
    nothing = CompositeCache({}, size=2)
    assert nothing.select([1], 0).size == 1
    assert nothing.join([nothing], 0).size == 4


def test_vllm_mlx_160_empty_rows_keep_their_place(model):
    """Skipped empty rows made tensors of 2 rows beside the metadata of 3."""
    batch = Batch.merge(rows_of(model, 3, 0, 2))
    assert (batch.size, batch.lengths, batch.left_padding) == (3, [3, 0, 2], [0, 3, 1])
    for layer in batch.layers:
        for tensor in tensors(layer):
            assert tensor.shape[0] == 3
            assert not tensor[1].any()
            assert tensor[0].any()
            assert tensor[2].any()


def test_mlx_swift_lm_323_conv_state_is_contiguous_after_every_step(model):
    """Strided slices carried through decode cost time at each token."""
    batch = model.batch(2)
    caches = [batch.layers[1], batch.layers[2]["conv"], batch.layers[4]]
    feed(model, batch, [[1, 2, 3, 4, 5, 6], [7]], left=True)
    addresses = [cache.state.data_ptr() for cache in caches]
    for left in (False, True):
        feed(model, batch, [[1, 2], [3]], left=left)
        model.run(batch, torch.tensor([[1], [2]]))
        for cache in caches:
            assert cache.state.is_contiguous()
            assert cache.state.untyped_storage().nbytes() == cache.nbytes
    assert addresses == [cache.state.data_ptr() for cache in caches]


def test_mlx_swift_lm_323_left_padding_stays_masked_once_there_is_state(model):
    """Masks were made for the first step only: decode saw what lay in the padding."""
    batch, tokens = model.batch(2), [[1, 2, 3, 4], [5]]
    feed(model, batch, tokens, left=True)
    for token in range(3):
        for layer in (batch.layers[0], batch.layers[3]):
            padding = max(0, layer.columns - batch.lengths[1])
            for tensor in tensors(layer):
                tensor[1, :, :padding] = 1e6
        outputs = model.run(batch, torch.tensor([[token], [token]]))
        for out, row in zip(outputs, tokens, strict=True):
            row.append(token)
            assert difference(model, out, row) < 1e-9


def test_metadata_advances_after_each_step(model):
    batch = model.batch(3)
    batch.prepare(lengths=[5, 2, 0])
    seen = []
    for columns in (3, 1, 2):
        step = batch.step(columns)
        seen.append((step.tokens, step.past, step.positions[0].tolist()))
        batch.advance(columns)
        seen.append(batch.lengths)
    assert seen == [
        ((3, 2, 0), 0, [0, 1, 2]),
        [3, 2, 0],
        ((1, 0, 0), 3, [3]),
        [4, 2, 0],
        ((1, 0, 0), 4, [4, 0]),
        [5, 2, 0],
    ]


def test_lengths_start_anew_where_a_batch_without_them_is_extended(model):
    """Extending no lengths by [5] gave [0, 0, 5] elsewhere, and masked the first rows wholly."""
    batch = Batch.merge(rows_of(model, 2, 2))
    batch.extend(rows_of(model, 5)[0])
    assert batch.lengths == [2, 2, 5]
    step = batch.step(1)
    assert (step.tokens, step.padded) == ((1, 1, 1), False)


@pytest.mark.parametrize("length", [0, 1, 3, 9])
def test_an_extracted_row_is_what_it_would_be_alone(model, length):
    lengths = [4, length, 6]
    batch = Batch.merge(rows_of(model, *lengths))
    row, alone = batch.extract(1), rows_of(model, length)[0]
    assert (row.size, row.lengths, row.left_padding) == (1, [length], [0])
    for mine, expected in zip(row.layers, alone.layers, strict=True):
        assert mine.size == 1
        for tensor in tensors(mine):
            assert tensor.is_contiguous()
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        for tensor, its in zip(tensors(mine), tensors(expected), strict=length > 0):
            torch.testing.assert_close(tensor, its)


def test_an_extracted_row_takes_what_was_announced_for_it(model):
    batch = model.batch(3)
    batch.prepare(lengths=[4, 3, 1])
    step = batch.step(2)
    batch.advance(2)
    row = batch.extract(1)
    assert (row.prepared, row.lengths) == (True, [2])
    step = row.step(2)
    assert (step.tokens, step.positions.tolist()) == ((1,), [[2, 0]])


def test_filter_takes_arrays_and_padding_together_and_drops_common_padding(model):
    batch = Batch.merge(rows_of(model, 7, 2, 4))
    short = [row.extract(0) for row in rows_of(model, 2, 4)]
    batch.filter([2, 1])
    assert (batch.lengths, batch.left_padding) == ([4, 2], [0, 2])
    assert batch.layers[0].columns == 4
    for place, alone in ((1, short[0]), (0, short[1])):
        keys = batch.layers[0].keys[place, :, 4 - alone.lengths[0] :]
        torch.testing.assert_close(keys, alone.layers[0].keys[0])


def test_filter_amid_padded_steps_takes_what_was_announced(model):
    batch = Batch.merge(rows_of(model, 6, 2, 3))
    batch.prepare(left_padding=[0, 3, 1])
    batch.filter([1, 2])
    assert batch.layers[0].columns == 3
    step = batch.step(2)
    assert (step.tokens, step.past) == ((0, 1), 3)
    assert step.key_positions.tolist() == [[-1, 0, 1, -1, -1], [0, 1, 2, -1, 3]]


def test_operations_share_no_memory(model):
    rows = rows_of(model, 3, 3)
    merged = Batch.merge(rows)
    before = [tensor.clone() for layer in merged.layers for tensor in tensors(layer)]
    for batch in (*rows, merged.extract(0)):
        for layer in batch.layers:
            for tensor in tensors(layer):
                tensor.fill_(torch.nan)
    after = [tensor for layer in merged.layers for tensor in tensors(layer)]
    assert all(map(torch.equal, before, after))


def test_a_step_keeps_nothing_of_the_callers_tensors():
    layers = AttentionCache(1), ConvCache(1, width=2), RecurrentCache(1)
    batch = Batch(layers)
    step = batch.step(3)
    given = [torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3), torch.ones(1, 2)]
    layers[0].update(given[0], given[0], step)
    layers[1].update(given[1], step)
    layers[2].write(given[2], step)
    for tensor in given:
        tensor.fill_(torch.nan)
    assert not any(tensor.isnan().any() for layer in layers for tensor in tensors(layer))


def test_a_padded_position_moves_no_recurrent_state_to_the_bit(model):
    batch = Batch.merge(rows_of(model, 5, 3))
    state = batch.layers[2]["recurrent"].state.clone()
    conv = batch.layers[1].state.clone()
    feed(model, batch, [[], [1, 2]], columns=6)
    assert torch.equal(batch.layers[2]["recurrent"].state[0], state[0])
    assert torch.equal(batch.layers[1].state[0], conv[0])
    assert not torch.equal(batch.layers[2]["recurrent"].state[1], state[1])


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_conv_state_is_taken_at_each_rows_true_end(channels_last, left):
    """Both conventions: the last K inputs on the last dimension, K - 1 with channels last."""
    width = TAPS - 1 if channels_last else TAPS
    cache = ConvCache(3, width=width, channels_last=channels_last)
    batch = Batch([cache])
    inputs = torch.arange(1.0, 19.0).reshape(3, 1, 6)
    counts = [6, 2, 0]
    if left:
        batch.prepare(left_padding=[6 - n for n in counts])
        inputs = torch.stack([row.roll(6 - n, -1) for row, n in zip(inputs, counts, strict=True)])
    else:
        batch.prepare(lengths=counts)
    cache.update(inputs.transpose(1, 2) if channels_last else inputs, batch.step(6))
    batch.advance(6)
    batch.finalize()
    state = cache.state.transpose(1, 2) if channels_last else cache.state
    expected = [[3, 4, 5, 6], [0, 0, 7, 8], [0, 0, 0, 0]]
    assert state[:, 0].tolist() == [row[-width:] for row in expected]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_lives_the_same_life_without_type_checks(kind):
    """Called alike by `Batch`; what a kind does not need does nothing."""
    cache = Model(layers=[KINDS[kind]]).batch(2).layers[0]
    assert cache.select([1], 0).size == 1
    assert cache.join([cache], 0).size == 4
    cache.check_lengths([0, 0])
    cache.check_join([cache])
    cache.prepare(0)
    cache.cancel()
    cache.advance(1)
    cache.finalize(0, None)
    cache.release()
    cache.release()
    assert (cache.size, cache.nbytes) == (2, 0)


def test_an_unknown_kind_needs_to_name_its_tensors_and_no_more():
    named = {name for name in vars(AverageCache) if not name.startswith("__")}
    assert named == {"update"}
    cache = AverageCache(2)
    cache.tensors["total"] = torch.ones(2, 3)
    joined = cache.join([AverageCache(1)], 0)
    assert joined.tensors["total"].tolist() == [[1.0] * 3, [1.0] * 3, [0.0] * 3]
    assert joined.select([2, 0], 0).tensors["total"].tolist() == [[0.0] * 3, [1.0] * 3]


def test_a_kind_without_state_is_a_row_count():
    batch = Batch([LayerCache(2)])
    batch.prepare(lengths=[1, 2])
    batch.step(2)
    batch.advance(2)
    batch.finalize()
    batch.extend(batch.extract(1))
    assert (batch.size, batch.lengths, batch.nbytes) == (3, [1, 2, 2], 0)


def test_bytes_are_those_of_the_tensors(model):
    batch = Batch.merge(rows_of(model, 7, 2))
    attention, conv, both, window, mlx, unknown = (layer.nbytes for layer in batch.layers)
    assert attention == 2 * 2 * HEADS * 7 * HEAD * 8
    assert window == 2 * 2 * HEADS * 4 * HEAD * 8
    assert (conv, mlx) == (2 * WIDTH * TAPS * 8, 2 * WIDTH * (TAPS - 1) * 8)
    assert both == conv + 2 * HEADS * HEAD * HEAD * 8
    assert batch.nbytes == attention + conv + both + window + mlx + unknown


@pytest.mark.parametrize("device", DEVICES)
def test_a_course_of_operations_stays_on_its_device(device):
    """Every operation on one device; what each leaves behind equals the course on the CPU."""

    def course(device):
        batch = Batch(
            [
                AttentionCache(2, window=3),
                AttentionCache(2),
                ConvCache(2, width=3),
                RecurrentCache(2),
            ]
        )
        generator = torch.Generator().manual_seed(0)
        for layout in (dict(lengths=[4, 1]), dict(left_padding=[2, 0]), None):
            if layout:
                batch.prepare(**layout)
            step = batch.step(4, device)
            k = torch.randn(batch.size, 2, 4, 3, generator=generator).to(device)
            window, full, conv, recurrent = batch.layers
            for layer in (window, full):
                keys, values, mask = layer.update(k, k + 1, step)
                torch.nn.functional.scaled_dot_product_attention(k, keys, values, attn_mask=mask)
            conv.update(k[:, 0].transpose(1, 2).contiguous(), step)
            state = recurrent.read((2, 3), dtype=torch.float32, device=device)
            recurrent.write(state + step.fill(k, 0.0, dim=2).sum(dim=2), step)
            batch.advance(4)
            if layout:
                batch.finalize()
            batch.extend(batch.extract(1))
            batch.filter([1, 0] if layout else [2, 0, 1])
        return batch

    made, expected = course(device), course("cpu")
    for mine, theirs in zip(made.layers, expected.layers, strict=True):
        for tensor, its in zip(tensors(mine), tensors(theirs), strict=True):
            assert tensor.device.type == device
            torch.testing.assert_close(tensor.cpu(), its)
