"""Families of models, scheduled as on a GPU: vLLM's own hits are restored, bit for bit.

Default settings and default engine options. The store has to be ready for the first send after vLLM
has forgotten everything, wherever a step ended: Mamba-2 exports states from inside a step.
"""

import pytest
import torch
from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from harness import Engine, tokens
from hybrid_pages.models.blocks import plan
from hybrid_pages.models.choices import Choices
from hybrid_pages.models.config import Config, find
from hybrid_pages.models.families import layers_of
from hybrid_pages.vllm import versions
from test_detects import zero
from written import owners, tables_at_the_end, written

HYBRID = [
    "qwen3.5",
    "qwen3-next",
    "kimi-linear",
    "lfm2",
    "lfm2-moe",
    "jamba",
    "granite4",
    "nemotron-h",
    "falcon-h1",
    "zamba2",
]
# Windows beside full attention, of which vLLM keeps few pages for its own hits unless told to: N.
WINDOWS = {"gpt-oss": 32, "gemma3": 32, "gemma4": 64, "gemma4-e4b": 64}
# Full attention alone, plain and latent.
ATTENTION = ["llama", "deepseek"]
# Their kinds of cache are those of others in the list, which always run.
ALIKE = {"lfm2-moe", "granite4", "zamba2"}
FAMILIES = [
    pytest.param(name, marks=[pytest.mark.long] if name in ALIKE else [])
    for name in (*HYBRID, *WINDOWS, *ATTENTION)
]


@pytest.fixture(scope="module", params=FAMILIES)
def engine(request, start):
    n = WINDOWS.get(request.param)
    dense = {} if n is None else {"prefix_cache_retention_interval": n}
    return start(request.param, inside=True, **dense)


@pytest.fixture(autouse=True)
def nothing_fails(engine: Engine):
    """A failure would be recomputed, and so go unnoticed."""
    yield
    assert not any(key.startswith("failures") for key in engine.stats())


def local_hit(engine: Engine, warm, prompt) -> int:
    """How much of a prompt vLLM's own cache holds after `warm`."""
    engine.reset_all()
    with engine.looking_away():
        for each in warm:
            engine.run(each)
        return engine.run(prompt).local


def test_scheduling_is_asynchronous(engine: Engine):
    assert type(engine.scheduler) is AsyncScheduler
    assert engine.core.batch_queue_size == 2


def test_the_plan_is_what_the_engine_reports(engine: Engine):
    config = Config.read(find(engine.vllm.model_config.model))
    # vLLM raises some CPUs' states to float32, and notes it there.
    states = engine.vllm.vllm_config.cache_config.mamba_ssm_cache_dtype
    # Without AMX, vLLM's kernel for latents has blocks of 16 tokens, whatever is asked for.
    latent = engine.vllm.model_config.use_mla and not torch.cpu._is_amx_tile_supported()
    found = plan(
        layers_of(config, Choices(ssm_dtype=states)),
        device="cpu",
        block_size=16 if latent else 32,
    )
    half = engine.half
    sizes = {kind: 0 for kind in ("attention", "window", "recurrent")}
    for each in half.connection.geometry.classes:
        sizes[each.kind] += each.entry_bytes
    assert found.block_tokens == half.connection.geometry.block_tokens == engine.N
    assert found.page_bytes == sizes["attention"] + sizes["window"]
    assert found.checkpoint_bytes == sizes["recurrent"]
    assert found.exports == half.connection.grid.exports_states
    planned = sorted((group.is_recurrent, group.block_tokens) for group in found.groups)
    groups = engine.scheduler.kv_cache_config.kv_cache_groups
    real = sorted(
        (versions.kind_of(spec) == "recurrent", spec.block_size)
        for spec in (versions.layer_spec(group, group.layer_names[0]) for group in groups)
    )
    assert planned == real


# Known report: vLLM#54504.
def test_the_first_resend_restores_every_full_block(engine: Engine):
    prompt = tokens("first", 4 * engine.N + 13)
    assert engine.restored([prompt], prompt, 8).host == 4 * engine.N


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_a_prompt_of_whole_blocks_recomputes_the_last_one(engine: Engine, blocks):
    prompt = tokens(("exact", blocks), blocks * engine.N)
    assert engine.restored([prompt], prompt, 8).host == (blocks - 1) * engine.N


def test_a_prompt_of_several_steps_is_restored(engine: Engine):
    prompt = tokens("steps", 2048 + 3 * engine.N + 5)
    assert engine.restored([prompt], prompt).host == len(prompt) // engine.N * engine.N


def test_an_extension_restores_what_vllm_would_hit(engine: Engine):
    prompt = tokens("extended", 3 * engine.N + 7)
    longer = prompt + tokens("extension", 2 * engine.N)
    hit = local_hit(engine, [prompt], longer)
    assert hit == 3 * engine.N
    assert engine.restored([prompt], longer, 8).host >= hit


# Known report: LMCache#4247.
def test_a_fork_restores_what_vllm_would_hit(engine: Engine):
    shared = tokens("shared", 3 * engine.N + 5)
    first, second, third = (shared + tokens(("branch", i), 2 * engine.N) for i in range(3))
    hit = local_hit(engine, [first, second], third)
    assert hit == 3 * engine.N
    assert engine.restored([first, second], third).host >= hit


def has_states(engine: Engine) -> bool:
    return any(item.kind == "recurrent" for item in engine.half.connection.geometry.classes)


@pytest.mark.parametrize("length", [20, 45])
def test_the_end_of_an_answer_is_gone_on_from_bit_for_bit(engine: Engine, length):
    """One token is computed, as in the answer that went on by itself; a zeroed state shows."""
    if not has_states(engine):
        pytest.skip("attention alone resumes at its small blocks")
    prompt, most, said = tokens(("end", length), length), 10, length % 8 + 1
    engine.reset_all()
    whole = engine.run(prompt, most)
    engine.reset_all()
    begun = engine.run(prompt, said)
    assert begun.tokens == whole.tokens[:said]
    longer = (*prompt, *begun.tokens)
    for spoil in (False, True):
        engine.reset_local()
        if spoil:
            (state,) = engine.slots_of_last("recurrent")
            zero(engine.half.connection.arena, [state[0]])
        rest = engine.run(longer, most - said)
        assert rest.host == len(longer) - 1
        equal = (rest.tokens, rest.logprobs) == (whole.tokens[said:], whole.logprobs[said:])
        assert equal is not spoil


def hinted(**hints):
    return {"extra_args": {"kv_transfer_params": {"hybrid_pages": hints}}}


def test_several_tokens_behind_an_end_are_computed_bit_for_bit_and_faults_show(engine: Engine):
    """Against a run without caches whose steps end at the same tokens."""
    if not has_states(engine):
        pytest.skip("attention alone resumes at its small blocks")
    n, arena = engine.N, engine.half.connection.arena
    prompt, other, more = tokens("begun", n + 9), tokens("another", n + 9), tokens("more", 12)
    longer, at = prompt + more, len(prompt)
    engine.cold(longer, 1)  # the very first run of `kimi-linear` differs from all later ones
    engine.reset_all()
    cold = engine.cold(longer, 6, **hinted(checkpoint_at=[n, at]))
    engine.reset_all()
    sooner, later = prompt[:-1], prompt + other[:1]  # no resume of `longer` is deeper than `prompt`
    for each in (prompt, sooner, later, other):
        engine.cold(each, 1, **hinted(checkpoint_at=[n]))

    def resumed(text, count=6):
        engine.reset_local()
        return engine.run(text, count, **hinted(store=False))

    def slots_after(text, kind):
        assert resumed((*text, 9), 1).host == len(text)
        return engine.slots_of_last(kind)[-1]

    state, earlier_one, later_one = (
        slots_after(text, "recurrent") for text in (prompt, sooner, later)
    )
    page, foreign = (slots_after(text, "attention") for text in (prompt, other))
    result = resumed(longer)
    assert (result.host, result) == (at, cold)
    for name, slots, bytes_of in (
        ("a state of one token earlier", state, earlier_one),
        ("a state of one token later", state, later_one),
        ("a state of nothing", state, None),
        ("a page of another prompt", page, foreign),
    ):
        right = [bytes(arena.read(slot)) for slot in slots]
        for slot, source in zip(slots, bytes_of or slots, strict=True):
            arena.write(slot, bytes(arena.read(source)) if bytes_of else bytes(arena.slot_bytes))
        result = resumed(longer)
        assert result.host == at
        assert result != cold, name
        for slot, data in zip(slots, right, strict=True):
            arena.write(slot, data)
    assert resumed(longer) == cold


def test_the_next_turn_of_a_conversation_restores_what_vllm_would_hit(engine: Engine):
    prompt = tokens("turn", 2 * engine.N + 5)
    engine.reset_all()
    answer = engine.run(prompt, 2 * engine.N).tokens
    follow_up = prompt + answer + tokens("next turn", 9)
    engine.reset_local()
    with engine.at_boundaries():
        restored = engine.run(follow_up)
    engine.reset_all()
    with engine.looking_away():
        assert engine.run(prompt, 2 * engine.N).tokens == answer
        hit = engine.run(follow_up).local
    assert restored.host >= hit >= 2 * engine.N
    engine.reset_all()
    with engine.looking_away():
        engine.run(prompt, 2 * engine.N)
    assert restored == engine.local_hit(follow_up, restored)


def test_eight_at_once_are_stored_and_restored(engine: Engine):
    """Batching moves rounding, so each is compared alone, on the blocks that came back."""
    prompts = [tokens(("at once", i), (1 + i % 4) * engine.N + 3 + i) for i in range(8)]
    engine.reset_all()
    engine.run_all(prompts)
    engine.reset_local()
    results = engine.run_all(prompts)
    assert [result.host // engine.N for result in results] == [1 + i % 4 for i in range(8)]
    own = engine.own_blocks_agree(prompts, results)
    with engine.looking_away():
        together = engine.run_all(prompts)
    noise = max(a.distance(b) for a, b in zip(own, together, strict=True))
    assert max(a.distance(b) for a, b in zip(own, results, strict=True)) <= 2 * noise + 0.1


@pytest.mark.parametrize("kind", ["attention", "recurrent"])
def test_zeroed_entries_show(engine: Engine, kind):
    if kind == "recurrent" and not has_states(engine):
        pytest.skip("no recurrent layers")
    prompt = tokens(("zeroed", kind), 4 * engine.N + 3)
    reference = engine.restored([prompt], prompt, 8)
    engine.reset_all()
    for _ in range(2):
        engine.run(prompt)
        engine.reset_local()
    for slots in engine.slots_of_last(kind):
        zero(engine.half.connection.arena, slots)
    wrong = engine.run(prompt, 8)
    assert wrong.host == reference.host
    assert wrong.distance(reference) > 0.05


def test_a_prompt_writes_the_bytes_of_its_tokens_and_no_others(engine: Engine) -> None:
    worker, grid = engine.worker, engine.half.connection.grid
    assert worker.report.whole_only is None
    raw = next(iter(worker._kv_caches.values())).untyped_storage()
    memory = torch.tensor([], dtype=torch.uint8).set_(raw).numpy()
    for left in (1, 5, engine.N - 1):
        prompt = tokens(("part", left), engine.N + left)
        engine.reset_all()
        memory[:] = 0
        tables = tables_at_the_end(engine, prompt)
        looked_at = 0
        for each in worker._maps:
            place = grid.groups[each.group]
            if each.tokens is None:
                continue
            of_bytes = owners(each.tokens)
            for column, block in enumerate(tables[place.table]):
                if block == 0:
                    continue
                there = min(place.tokens, len(prompt) - column * place.tokens)
                mine = written(each, memory, raw.data_ptr(), block)
                assert not mine[of_bytes >= there].any(), (left, column, each)
                assert mine[of_bytes < there].mean() > 0.5
                looked_at += 1
        assert looked_at
