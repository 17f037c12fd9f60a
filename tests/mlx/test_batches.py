"""Rows that begin behind a restored prefix, as vllm-mlx's server has them, against cold rows."""

from collections import Counter
from types import SimpleNamespace

import mlx.core as mx
import pytest
from mlx_lm.generate import BatchGenerator

import tiny
from hybrid_pages.adapter.tiers import TierSettings
from hybrid_pages.mlx import cache_io, prompts
from hybrid_pages.mlx.batching import batches_rightly, decodes_rightly
from hybrid_pages.mlx.differences import BATCHED, DECODED_TOGETHER
from hybrid_pages.mlx.prompts import Prompts
from hybrid_pages.vllm_mlx.batches import Prompt, RowBatches
from hybrid_pages.vllm_mlx.prompt_tokens import PromptTokens
from runs import BLOCK, NOISE, VISIBLE, apart

NEW = 6
# Seconds for all of them: `make test` runs few.
FEW = ["qwen3_next", "lfm2", "mamba"]
NAMES = [
    name if name in FEW else pytest.param(name, marks=pytest.mark.long)
    for name in DECODED_TOGETHER
    if name in tiny.HYBRIDS
]


def written(generator):
    """Tokens and log-probs that all rows get, by row."""
    found = {}
    while now := generator.next_generated():
        for response in now:
            found.setdefault(response.uid, []).append((response.token, response.logprobs))
    return found


def cold(model, ids):
    generator = BatchGenerator(model, max_tokens=NEW)
    generator.insert([ids])
    (row,) = written(generator).values()
    return row


@pytest.fixture
def serve(models):
    """Makes what serves requests of a model, all at once, as vllm-mlx's scheduler does."""
    kept = []

    def make(name):
        model = models(name)
        known = Prompts(model, TierSettings(0.05), BLOCK, Counter())
        kept.append(known)
        rows = 8 if batches_rightly(model) else 1
        generator = RowBatches(
            model, max_tokens=NEW, prefill_batch_size=rows, completion_batch_size=32
        )
        generator.prompts, generator.counts = known, Counter()

        def ask(*asked, ends=(30,)):
            requests = [SimpleNamespace() for _ in asked]
            uids = [
                generator.insert([Prompt(ids, request, ends)], logits_processors=[[]])[0]
                for ids, request in zip(asked, requests, strict=True)
            ]
            found = written(generator)
            assert not known.failures
            return [found[uid] for uid in uids], [each.cached_tokens for each in requests]

        ask.generator, ask.known, ask.model = generator, known, model
        return ask

    yield make
    for each in kept:
        each.close()


def agree(ask, asked):
    """Asks for all at once; how many tokens of each were restored, how far log-probs are off."""
    rows, restored = ask(*asked)
    worst = 0.0
    for ids, row in zip(asked, rows, strict=True):
        wanted = cold(ask.model, ids)
        if [token for token, _ in row] != [token for token, _ in wanted]:
            return restored, 100
        pairs = zip(row, wanted, strict=True)
        worst = max(worst, *(apart(a, b) for (_, a), (_, b) in pairs))
    return restored, worst


def asked():
    """Prompts of different lengths, most of which share 40 tokens."""
    begin = tiny.tokens(40)
    return [[*begin, *tiny.tokens(count, seed=count)] for count in (37, 5, 20, 11, 3)] + [
        tiny.tokens(33, seed=50)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_restored_rows_are_cold_rows(serve, name):
    ask, ids = serve(name), asked()
    assert decodes_rightly(ask.model)
    restored, worst = agree(ask, ids)
    assert worst < NOISE
    # At the latest when all come again, each begins before its last token.
    for _ in range(2):
        restored, worst = agree(ask, ids)
        assert restored == [len(each) - 1 for each in ids]
        assert worst < NOISE
    # Forks: at the end of a message, and inside it.
    restored, worst = agree(ask, [[*ids[0][:30], *tiny.tokens(20, 60)], [*ids[0][:55], 9, 9, 9]])
    assert restored[0] == 30
    assert worst < NOISE


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2"])
def test_answers_are_resumed_at_their_ends(serve, name):
    ask, ids = serve(name), tiny.tokens(45)
    (row,), _ = ask(ids)
    longer = [*ids, *(token for token, _ in row), 9, 8, 7]
    restored, worst = agree(ask, [longer])
    assert restored == [len(longer) - 3]
    assert worst < NOISE


def test_rows_that_are_removed_leave_the_others_right(serve):
    ask, ids = serve("qwen3_next"), asked()
    requests = [SimpleNamespace() for _ in ids]
    pairs = zip(ids, requests, strict=True)
    uids = [ask.generator.insert([Prompt(each, one, ())])[0] for each, one in pairs]
    for gone in uids[:2]:
        ask.generator.next()
        ask.generator.remove([gone])
    found = written(ask.generator)
    assert not set(found) & set(uids[:2])
    assert not ask.generator._rows
    for each, uid in list(zip(ids, uids, strict=True))[2:]:
        assert [token for token, _ in found[uid]] == [token for token, _ in cold(ask.model, each)]
    assert agree(ask, ids)[1] < NOISE


def test_a_failure_is_a_miss_and_is_counted(serve, monkeypatch):
    ask, ids = serve("lfm2"), tiny.tokens(45)

    def fail(*_):
        raise OSError("planted")

    for name, doing in (("put", "store"), ("get", "restore")):
        with monkeypatch.context() as patch:
            patch.setattr(ask.known._store, name, fail)
            ask.generator.insert([Prompt(ids, request := SimpleNamespace(), ())])
            (row,) = written(ask.generator).values()
        assert [token for token, _ in row] == [token for token, _ in cold(ask.model, ids)]
        assert ask.known.failures[doing]
        assert (request.cached_tokens, request.cache_hit_type) == (0, "miss")


def test_processors_stay_with_their_rows(serve):
    """Also behind rows that had none, and they see what was restored."""
    ask, ids = serve("lfm2"), tiny.tokens(45)
    for _ in range(2):
        ask(tiny.tokens(20, 70), tiny.tokens(23, 71))
        seen = []

        def note(tokens, logits, seen=seen):
            seen.append(tokens.tolist())
            return logits

        ask.generator.insert([Prompt(ids, SimpleNamespace(), ())], logits_processors=[[note]])
        written(ask.generator)
        assert seen[0] == ids


def test_counts_of_tokens_are_numbers_with_what_was_cached():
    total = 0
    for one in (PromptTokens(9, 4), PromptTokens(7, 0), 5):
        total += one
    assert (total, total.cached, type(int(total))) == (21, 4, int)


# ---- the comparison can fail


def zeroed_states(monkeypatch):
    monkeypatch.setattr(cache_io.Reader, "_state", lambda self, spec: mx.zeros(spec.shape))


def shifted_pages(monkeypatch):
    put = cache_io.Writer._put

    def shifted(self, spec, start, rows):
        put(self, spec, start, rows[:, ::-1] if spec.kind == "keys" else rows)

    monkeypatch.setattr(cache_io.Writer, "_put", shifted)


def another_row(monkeypatch):
    """What is stored is the state that was stored before. Attention layers count their tokens."""
    store = prompts.Prompts.store
    last = []

    def wrong(self, tokens, cache, **kwargs):
        last.append(cache)
        store(self, tokens, last[-2] if len(last) > 1 else cache, **kwargs)

    monkeypatch.setattr(prompts.Prompts, "store", wrong)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("qwen3_next", zeroed_states),
        ("mamba", zeroed_states),
        ("lfm2", shifted_pages),
        ("mamba", another_row),
    ],
)
def test_each_fault_is_seen(serve, monkeypatch, name, fault):
    ask, ids = serve(name), asked()
    fault(monkeypatch)
    ask(*ids)
    assert agree(ask, ids)[1] > VISIBLE


@pytest.mark.skipif("qwen3_next" in BATCHED, reason="this mlx-lm computes such rows rightly")
def test_prompts_of_different_lengths_in_one_pass_are_seen(serve):
    ask = serve("qwen3_next")
    ask.generator.prefill_batch_size = 8
    assert agree(ask, asked())[1] > VISIBLE
