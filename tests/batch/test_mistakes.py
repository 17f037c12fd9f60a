"""The comparison with rows alone can fail: each mistake that such code makes turns it red."""

import pytest
import torch

from hybrid_pages.batch import AttentionCache, Batch, ConvCache, RecurrentCache, Step
from reference import Model, difference, feed


def scenario():
    """The largest deviation on a fixed course through every operation; inf if NaN leaks."""
    model = Model()
    batch, rows, found = model.batch(3), [[], [], []], []

    def note(outputs, more):
        for tokens, new in zip(rows, more, strict=True):
            tokens.extend(new)
        found.extend(map(difference, [model] * len(rows), outputs, rows))

    def ragged(more, **layout):
        note(feed(model, batch, more, **layout), more)

    def decode(ids):
        note(model.run(batch, torch.tensor(ids)[:, None]), [[token] for token in ids])

    ragged([[1, 2, 3, 4, 5, 6, 7], [8, 9], [10, 11, 12]], left=True)
    decode([1, 2, 3])
    ragged([[1], [2, 3, 4, 5], []], chunk=2)
    ragged([[6, 7], [8], [9, 1, 2]], left=True)
    batch.filter([2, 0])
    rows[:] = [rows[2], rows[0]]
    decode([4, 5])
    batch.extend(model.batch(1))
    rows.append([])
    decode([6, 7, 8])
    ragged([[1], [2], [3, 4]])
    decode([9, 10, 11])
    decode([12, 13, 14])
    return max(found)


def test_the_course_is_exact():
    assert scenario() < 1e-9


def drop_left_padding_masks_once_there_is_state(patch):
    mask = Step.mask
    patch.setattr(
        Step, "mask", lambda s, **k: mask(s, **k) if s.padded else torch.ones_like(mask(s, **k))
    )


def leave_padding_as_it_is(patch):
    patch.setattr(Step, "fill", lambda step, x, value, dim=1: x.nan_to_num(0.5))


def let_the_state_decay_at_padding(patch):
    def fill(step, x, value, dim=1):
        # Of all that is filled only the decay is [rows, columns, heads] and nowhere positive.
        decay = x.dim() == 3 and bool((x[~x.isnan()] <= 0).all())
        return x.nan_to_num(-0.01 if decay else 0.0)

    patch.setattr(Step, "fill", fill)
    patch.setattr(RecurrentCache, "write", lambda cache, x, step: cache.tensors.update(state=x))


def take_the_conv_state_at_the_padded_end(patch):
    take = ConvCache._take

    def at_the_end(cache, x, columns):
        if columns.shape[1] == cache.width:
            columns = torch.arange(x.shape[cache._dim])[-cache.width :].expand(x.shape[0], -1)
        return take(cache, x, columns)

    patch.setattr(ConvCache, "_take", at_the_end)


def leave_the_conv_state_before_left_padding(patch):
    take = ConvCache._take

    def unmoved(cache, x, columns):
        if columns.shape[1] != cache.width:
            columns = torch.arange(x.shape[cache._dim]).expand(x.shape[0], -1)
        return take(cache, x, columns)

    patch.setattr(ConvCache, "_take", unmoved)


def forget_to_count_tokens(patch):
    advance = Batch.advance

    def forgetful(batch, columns):
        lengths = batch.lengths
        advance(batch, columns)
        # At the end of the course: a miscount before a padded step is an error at once.
        if lengths[-1] == 3 and batch.size == 3 and lengths[0] == 10:
            batch._lengths = lengths

    patch.setattr(Batch, "advance", forgetful)


def forget_to_advance_lengths(patch):
    advance, finalize = Batch.advance, Batch.finalize

    def forgetful(batch, columns):
        waiting = batch._waiting
        advance(batch, columns)
        batch._waiting = waiting

    def lenient(batch):
        batch._waiting = None
        finalize(batch)

    patch.setattr(Batch, "advance", forgetful)
    patch.setattr(Batch, "finalize", lenient)


def leave_right_padding_in_the_cache(patch):
    finalize = AttentionCache.finalize
    patch.setattr(
        AttentionCache, "finalize", lambda cache, columns, _: finalize(cache, columns, None)
    )


def filter_the_tensors_without_their_lengths(patch):
    select = Batch._selected

    def selected(batch, rows):
        made = select(batch, rows)
        made._lengths = batch._lengths[: made.size]
        made._columns = max(made._lengths)
        return made

    patch.setattr(Batch, "_selected", selected)


def cut_the_window_at_the_padded_end(patch):
    finalize = AttentionCache.finalize

    def cut(cache, columns, order):
        if cache.window is not None and cache.keys is not None:
            kept = min(cache.columns, cache.window - 1)
            for tensor in cache.tensors.values():
                tensor[:, :, : cache.columns - kept] = 0
        finalize(cache, columns, order)

    patch.setattr(AttentionCache, "finalize", cut)


MISTAKES = [
    drop_left_padding_masks_once_there_is_state,
    leave_padding_as_it_is,
    let_the_state_decay_at_padding,
    take_the_conv_state_at_the_padded_end,
    leave_the_conv_state_before_left_padding,
    forget_to_count_tokens,
    forget_to_advance_lengths,
    leave_right_padding_in_the_cache,
    filter_the_tensors_without_their_lengths,
    cut_the_window_at_the_padded_end,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_turns_the_comparison_red(mistake, monkeypatch):
    mistake(monkeypatch)
    assert scenario() > 1e-4
