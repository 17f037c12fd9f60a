"""KV events, over vLLM's own publisher: what a router folds them into is what is restored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm.lora.request import LoRARequest

from hybrid_pages.vllm.scheduler.connection import EngineFacts
from hybrid_pages.vllm.scheduler.half import SchedulerHalf
from simulation.copies import Script
from simulation.engine import Engine, StartEngine
from simulation.function import VOCABULARY
from simulation.router import Block, Router, attention
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.speculation import METHODS, Speculation
from simulation.workload import Mix, Workload
from test_boundaries import tokens
from test_counts import counters

BUSY = Mix(
    abort=0.03,
    forget=0.03,
    reset=0.03,
    reset_all=0.01,
    salts=(None, None, "salt"),
    adapters=2,
    images=0.2,
)


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    router = Router(tmp_path)
    yield router
    router.close()


def ask(engine: Engine, path: list[Block], fresh: int, seed: int) -> Any:
    """Sends what was announced and a few tokens more, as whom the events name."""
    rng = random.Random(seed)
    prompt = [token for block in path for token in block.tokens]
    prompt += [rng.randrange(VOCABULARY) for _ in range(fresh)]
    number, name = path[0].lora
    lora = None if name is None else LoRARequest(name, number, f"/a/{number}")
    salt = "salt" if path[0].extra_keys and "salt" in path[0].extra_keys else None
    return engine.generate(prompt, 2, lora=lora, salt=salt)


def has_images(path: list[Block]) -> bool:
    return any(not isinstance(key, str) for block in path for key in block.extra_keys or ())


@pytest.mark.parametrize("async_scheduling", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gdn", {}),
        ("gdn", {"match_unit": 4}),
        ("gdn", {"ranks": 2}),
        ("gdn-window", {}),
        ("window-attention", {}),
        ("attention-only", {}),
        ("kda-exports", {"in_process": True}),
        ("pages-differ", {}),
    ],
    ids=lambda item: item if isinstance(item, str) else "-".join(item) or "plain",
)
def test_what_events_predict_is_what_is_restored(
    start: StartEngine, router: Router, name: str, options: dict[str, Any], async_scheduling: bool
) -> None:
    engine = start(
        SHAPES[name],
        events=router.config,
        async_scheduling=async_scheduling,
        extra={"host_gb": 0.0004},
        **options,
    )
    workload = Workload(random.Random(f"{name} {options}"), BUSY)
    probed = 0
    for round_ in range(3):
        workload.run(engine, 12)
        router.hear(engine)
        router.check()
        [group, *others] = attention(engine)
        for other in others:
            assert router.blocks[("CPU", other)].keys() == router.blocks[("CPU", group)].keys()
        for at in range(4):
            # vLLM's own cache says that all is cleared; what the host has is told again.
            assert engine.reset_prefix_cache()
            paths = [path for path in router.leaves(group) if not has_images(path)]
            if not paths:
                break
            path = paths[(7 * round_ + at) % len(paths)]
            result = ask(engine, path, 1 + at * N // 2, seed=100 * round_ + at)
            assert result.local_tokens == 0
            assert result.restored_tokens == len(path) * len(path[0].tokens)
            probed += 1
            router.hear(engine)
            router.check()
    assert probed > 6
    assert router.heard_live
    engine.cache.clear()
    engine.generate(tokens(3))  # a prompt of no block
    router.hear(engine)
    assert not any(blocks for place, blocks in router.blocks.items() if place[0] == "CPU")
    engine.check_idle()


def test_a_prompt_is_predicted_as_deep_as_it_is_restored(
    start: StartEngine, router: Router
) -> None:
    """Prompts at random, most of which leave what was announced somewhere: no router can know where
    inside a span a state is, and a prompt is never restored deeper than predicted."""
    engine = start(events=router.config)
    workload = Workload(random.Random(5))
    exact = 0
    for _ in range(40):
        engine.reset_prefix_cache()
        prompt = workload.prompt()
        router.hear(engine)
        predicted = router.predict(engine, engine._request(prompt))
        found = engine.generate(prompt).restored_tokens
        limit = (len(prompt) - 1) // N * N
        whole = found // N * N  # no end inside a block is announced
        assert whole <= min(predicted, limit)
        assert bool(whole) == bool(predicted and engine.depths(prompt)) or predicted > whole
        exact += whole == min(predicted, limit)
    assert exact >= 25


def test_evicted_blocks_are_removed(start: StartEngine, router: Router) -> None:
    engine = start(events=router.config, extra={"host_gb": 0.00006})
    first = tokens(4 * N + 3)
    engine.generate(first)
    router.hear(engine)
    assert router.predict(engine, engine._request(first)) == 4 * N
    for seed in range(1, 12):
        engine.generate(tokens(4 * N + 3, seed))
        router.hear(engine)
        router.check()
    assert engine.cache.stats()["evicted_pages"]
    assert router.predict(engine, engine._request(first)) == 0


def test_a_failed_load_removes_what_it_dropped(
    start: StartEngine, router: Router, script: Script
) -> None:
    engine = start(events=router.config)
    prompt = tokens(4 * N + 3)
    engine.generate(prompt)
    engine.reset_prefix_cache()
    script.fault = lambda kind: "before" if kind == "load" else None
    assert engine.generate(prompt).restored_tokens == 0
    router.hear(engine)
    router.check()


def test_a_reset_of_the_connector_removes_all(start: StartEngine, router: Router) -> None:
    engine = start(events=router.config)
    prompt = tokens(4 * N + 3)
    engine.generate(prompt)
    router.hear(engine)
    assert engine.reset_prefix_cache(reset_connector=True)
    engine.generate(tokens(3))
    router.hear(engine)
    router.check()
    assert router.predict(engine, engine._request(prompt)) == 0


def test_an_adapter_that_is_loaded_again_removes_what_was_stored_with_its_old_weights(
    start: StartEngine, router: Router, tmp_path: Path
) -> None:
    engine = start(events=router.config)
    lora = LoRARequest("a", 1, str(tmp_path))
    prompt = tokens(4 * N + 3)
    engine.generate(prompt, lora=lora)
    router.hear(engine)
    [group] = attention(engine)
    old = dict(router.blocks["CPU", group])
    assert len(old) == 4
    engine.reset_prefix_cache()
    engine.update_weights("a")
    again = LoRARequest("a", 1, str(tmp_path), load_inplace=True)
    other = tokens(2 * N + 3, 1)
    engine.generate(other, lora=again)
    router.hear(engine)
    router.check()
    assert len(router.blocks["CPU", group]) == 2
    # The same hashes, with the new weights.
    engine.reset_prefix_cache()
    assert engine.generate(prompt, lora=lora).restored_tokens == 0
    router.hear(engine)
    router.check()
    assert router.blocks["CPU", group].keys() > old.keys()


def test_a_tenants_adapter_is_no_reload_of_anothers(start: StartEngine, router: Router) -> None:
    engine = start(events=router.config, extra={"tenant_share": 0.5})
    lora = LoRARequest("a", 1, "/a/1")
    [group] = attention(engine)
    for seed, salt in enumerate((None, "a", "b", "a", None, "b")):
        engine.generate(tokens(4 * N + 3, seed), lora=lora, salt=salt)
        router.hear(engine)
        router.check()
        assert len(router.blocks["CPU", group]) == 4 * (seed + 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["gdn", "attention-only"])
def test_what_accepted_drafts_complete_is_described(
    start: StartEngine, router: Router, name: str, method: str
) -> None:
    engine = start(
        SHAPES[name],
        events=router.config,
        speculation=Speculation(method, 3),
        extra={"host_gb": 0.01, "checkpoint_mode": "all"},
    )
    [group, *_] = attention(engine)
    for seed in range(3):
        answer = engine.generate(tokens(3 * N + 5 + seed, seed), 5 * N)
        router.hear(engine)
        router.check()
        assert len(answer.tokens) == 5 * N
        assert len(router.blocks["CPU", group]) >= 6 * (seed + 1)
    assert "failures:event" not in counters(engine)


def test_before_the_ranks_have_agreed_nothing_is_announced(
    start: StartEngine, router: Router
) -> None:
    engine = start(events=router.config)
    half = engine.half
    fresh = SchedulerHalf(
        half.connection.settings,
        EngineFacts(
            half.connection.grid, half.connection.ranks, event_groups=half.connection._event_groups
        ),
    )
    assert not fresh.connection.connected
    assert not list(fresh.take_events())


def test_without_events_nothing_is_followed(start: StartEngine) -> None:
    engine = start()
    engine.generate(tokens(4 * N + 3))
    assert engine.half.connection.events is None
    assert list(engine.connector.take_events()) == []
    assert engine.cache.changes(anew=True).stored == []


def test_a_block_that_cannot_be_described_is_counted_and_costs_nothing_else(
    start: StartEngine, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(events=router.config)
    describe = engine.half.connection.events._describe
    monkeypatch.setattr(engine.half.connection.events, "_describe", lambda *_: 1 / 0)
    prompt = tokens(4 * N + 3)
    engine.generate(prompt)
    engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 4 * N
    router.hear(engine)
    assert router.predict(engine, engine._request(prompt)) == 0
    assert counters(engine)["failures:event"]
    # Described later and removed, it is announced when it is stored again.
    monkeypatch.setattr(engine.half.connection.events, "_describe", describe)
    engine.generate(prompt)
    router.hear(engine)
    for _ in range(2):
        assert engine.reset_prefix_cache(reset_connector=True)
        engine.generate(prompt)
        router.hear(engine)
        router.check()
        assert router.predict(engine, engine._request(prompt)) == 4 * N
