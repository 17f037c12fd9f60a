"""Speculative decoding: what is restored gives the tokens, log-probabilities and guesses of vLLM's
own local hit at the same boundary, under the same speculation, bit for bit.

The head's attention matters to its guesses, so that a wrong page of its layer shows in them.
"""

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

import at_once
from guesses import with_guesses, zero_head
from harness import Engine, tokens
from test_detects import zero

MTP = {"method": "mtp"}
NGRAM = {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}


GUESSES = {
    "mtp-1": MTP | {"num_speculative_tokens": 1},
    "mtp-2": MTP | {"num_speculative_tokens": 2},
    "mtp-3": MTP | {"num_speculative_tokens": 3},
    "ngram-3": NGRAM | {"num_speculative_tokens": 3},
}
ENGINES = [(guess, mode) for guess in GUESSES for mode in ("adaptive", "align", "all")]


@pytest.fixture(scope="module", params=ENGINES, ids="-".join)
def engine(request, start):
    guess, mode = request.param
    speculation = GUESSES[guess]
    # vLLM looks for n-grams between two steps, so one has to end before the next begins.
    follows = {"async_scheduling": False} if speculation["method"] == "ngram" else {}
    settings = {"checkpoint_mode": mode}
    return start("qwen3.5-mtp", settings, speculative_config=speculation, **follows)


@pytest.fixture
def head(engine: Engine):
    """For tests of a drafter with layers of its own."""
    if engine.vllm.vllm_config.speculative_config.method != "mtp":
        pytest.skip("guesses without a model")


@pytest.fixture(autouse=True)
def adaptive(engine: Engine, request):
    """All but resent prompts are tested in the default mode alone: in ``all`` more is restored than
    vLLM's own cache hits, so that there is no reference."""
    mode = engine.half.connection.checkpoints.mode
    if mode != "adaptive" and request.function is not test_every_resend_is_what_a_local_hit_gives:
        pytest.skip(f"checkpoint_mode {mode}: resent prompts alone")


@pytest.fixture(autouse=True)
def nothing_fails(engine: Engine):
    """A failure would be recomputed, and so go unnoticed."""
    yield
    assert not any(key.startswith("failures") for key in engine.stats())


def spoken(seed: object, count: int):
    """A prompt with a past that repeats itself, so that its future can be guessed from it."""
    new = tokens(seed, count - count // 4)
    return new + new[: count // 4]


def test_engines_are_as_on_a_gpu(engine: Engine):
    if engine.vllm.vllm_config.speculative_config.method == "mtp":
        assert type(engine.scheduler) is AsyncScheduler
    runner = engine.core.model_executor.driver_worker.worker.model_runner
    assert type(runner).__module__ == "vllm.v1.worker.cpu.model_runner"
    assert runner.speculator is not None


def test_some_guesses_are_right_and_some_are_wrong(engine: Engine):
    count = engine.vllm.vllm_config.speculative_config.num_speculative_tokens
    prompt = tokens("guessed", engine.N)
    engine.reset_all()
    said = prompt + engine.run(prompt, 16).tokens + prompt[-1:]  # what came next may come again
    result, (guesses,) = with_guesses(engine, lambda: engine.run(said, 24))
    # A step gives one token and those guessed right.
    assert len(result.tokens) // (count + 1) < len(guesses) < len(result.tokens)


# Known report: LMCache#4984.
def test_every_resend_is_what_a_local_hit_gives(engine: Engine):
    """The first one restores what vLLM would hit, though it goes back by a block for the head."""
    prompt = spoken("resend", 4 * engine.N + 44)
    engine.reset_all()
    restored = []
    engine.run(prompt, 1)
    for _ in range(2):
        engine.reset_local()
        restored.append(with_guesses(engine, lambda: engine.run(prompt, 8)))
    engine.reset_all()
    with engine.looking_away():
        engine.run(prompt, 1)
        hit = engine.run(prompt, 1).local
    assert restored[0][0].host >= hit
    for found in restored:
        again = with_guesses(engine, lambda: engine.local_hit(prompt, found[0], 8))  # noqa: B023
        assert again == found


def test_the_next_turn_is_what_a_local_hit_gives(engine: Engine):
    prompt = spoken("turn", 3 * engine.N - 24)
    engine.reset_all()
    answer = engine.run(prompt, 50).tokens
    follow_up = prompt + answer + tokens("next turn", 30)
    engine.reset_local()
    restored = with_guesses(engine, lambda: engine.run(follow_up, 8))
    engine.reset_all()
    with engine.looking_away():
        assert engine.run(prompt, 50).tokens == answer
    assert with_guesses(engine, lambda: engine.local_hit(follow_up, restored[0], 8)) == restored
    assert restored[0].host >= engine.N


@pytest.mark.parametrize("extra", [0, 5])
def test_forks_are_what_local_hits_give(engine: Engine, extra):
    """At a boundary, where the head's page ends with a guess of another branch, and past it."""
    shared = spoken("shared", 3 * engine.N + extra)
    prompts = [shared + tokens((extra, i), engine.N + 9) for i in range(3)]
    engine.reset_all()
    warm = [engine.run(prompt) for prompt in prompts[:2]]
    engine.reset_local()
    restored = with_guesses(engine, lambda: engine.run(prompts[2], 8))
    engine.reset_all()
    for prompt, result in zip(prompts, warm, strict=False):
        engine.local_hit(prompt, result)
    reference = with_guesses(engine, lambda: engine.local_hit(prompts[2], restored[0], 8))
    assert reference == restored
    assert restored[0].host >= 2 * engine.N


def test_prompts_at_once_are_what_local_hits_in_the_same_batches_give(engine: Engine):
    prompts = [spoken(("at once", i), (2 + i % 2) * engine.N + 7 + 3 * i) for i in range(4)]
    engine.reset_all()
    for prompt in prompts:
        engine.run(prompt)
    engine.reset_local()
    batch, guesses = with_guesses(engine, lambda: at_once.restored(engine, prompts, 8))
    assert all(result.host for result in batch.results)
    engine.reset_all()
    with engine.looking_away():
        for prompt in prompts:
            engine.run(prompt)
    own, own_guesses = with_guesses(engine, lambda: at_once.local_hits(engine, prompts, batch, 8))
    assert own.results == batch.results
    assert own_guesses == guesses


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_zeroed_entries_show(engine: Engine, kind):
    prompt, reference, _ = restored_again(engine)
    for slots in engine.slots_of_last(kind):
        zero(engine.half.connection.arena, slots)
    engine.reset_local()
    wrong = engine.run(prompt, 12)
    assert wrong.host == reference.host
    assert wrong.distance(reference) > 0.05


@pytest.mark.parametrize("pages", [None, [0], [-1]])
def test_zeroed_pages_of_the_head_show_in_its_guesses(engine: Engine, head, pages):
    """One page of several need not change which token is the likeliest, so some of five prompts
    have to show it; all pages show in each."""
    shows = []
    for seed in range(5):
        prompt, reference, guesses = restored_again(engine, seed)
        zero_head(engine, pages)
        engine.reset_local()
        wrong, others = with_guesses(engine, lambda: engine.run(prompt, 12))  # noqa: B023
        assert wrong.host == reference.host
        # Guesses change what is computed together, and so the rounding, but never what is answered.
        assert wrong.tokens == reference.tokens
        shows.append(others != guesses)
    assert all(shows) if pages is None else any(shows)


def restored_again(engine: Engine, seed: int = 0):
    prompt = spoken(("zeroed", seed), 4 * engine.N + 3)
    engine.reset_all()
    for _ in range(2):
        engine.run(prompt)
        engine.reset_local()
    result, guesses = with_guesses(engine, lambda: engine.run(prompt, 12))
    assert result.host > 0
    return prompt, result, guesses
