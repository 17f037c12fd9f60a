"""Steps that are too short: what the start warning says is what vLLM's scheduler does."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from simulation import engine as simulated
from simulation.copies import Script
from simulation.engine import Engine, connector
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from simulation.speculation import Speculation

PROMPT = 4 * N + 6
STEPS = 40
"""More than the prompt takes in pieces, and fewer than the other requests run."""

SETTINGS = (
    "max_num_scheduled_tokens",
    "long_prefill_token_threshold",
    "long_prefill_token_threshold_adaptive",
)

Start = Callable[..., tuple[Engine, list[str]]]


@pytest.fixture
def start(
    script: Script, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Start]:
    """Starts an engine whose scheduler has more settings; also returns what it warns of."""
    engines: list[Engine] = []
    real = simulated.engine_config

    def begin(shape: str = "gdn", **options: Any) -> tuple[Engine, list[str]]:
        settings = {name: options.pop(name) for name in SETTINGS if name in options}

        def engine_config(*words: Any, **values: Any) -> Any:
            config = real(*words, **values)
            for name, value in settings.items():
                setattr(config.scheduler_config, name, value)
            return config

        monkeypatch.setattr(simulated, "engine_config", engine_config)
        caplog.clear()
        with caplog.at_level(logging.WARNING, logger="vllm.hybrid_pages"):
            transfer = connector(checkpoint_mode="all")
            engines.append(Engine(SHAPES[shape], transfer=transfer, **options))
        said = [record.getMessage() for record in caplog.records]
        return engines[-1], [line for line in said if line.startswith("hybrid-pages: step-")]

    yield begin
    for engine in engines:
        engine.close()


def tokens(count: int, seed: object) -> list[int]:
    rng = random.Random(f"{seed}")
    return [rng.randrange(500) for _ in range(count)]


def waits(engine: Engine, others: int) -> bool:
    """Whether a prompt of several blocks gets no answer while so many others are decoded."""
    for number in range(others):
        engine.add(tokens(5, number), 200)
    for _ in range(2 * others + 4):
        engine.step()
    request = engine.add(tokens(PROMPT, "long"), 2)
    for _ in range(STEPS):
        if request.done:
            return False
        engine.step()
    return True


@pytest.mark.parametrize("others", [0, 1, 5])
@pytest.mark.parametrize(
    "options",
    [
        {"batched_tokens": 10},
        {"batched_tokens": N - 1},
        {"batched_tokens": N},
        {"batched_tokens": N + 4},
        {"batched_tokens": 2 * N - 2},
        {"batched_tokens": 2 * N - 1},
        {"max_num_scheduled_tokens": 10},
        {"max_num_scheduled_tokens": N},
        {"max_num_scheduled_tokens": N + 4},
        {"max_num_scheduled_tokens": 2 * N - 1},
        {"max_num_scheduled_tokens": 128, "batched_tokens": 10},
        {"max_num_scheduled_tokens": 128, "batched_tokens": N},
        *(
            {"batched_tokens": batched, "long_prefill_token_threshold": threshold}
            for batched in (N, N + 4, 128)
            for threshold in (10, N - 1, N, N + 4)
        ),
        {
            "batched_tokens": N + 4,
            "long_prefill_token_threshold": 10,
            "long_prefill_token_threshold_adaptive": True,
        },
        *(
            {"batched_tokens": batched, "speculation": Speculation(method, 1)}
            for batched in (N, N + 1, N + 4, 2 * N - 1, 2 * N)
            for method in ("ngram", "mtp", "draft_model")
        ),
        # Others may take more than N - 1 tokens of a step.
        *(
            {"batched_tokens": batched, "speculation": Speculation("mtp", 3)}
            for batched in (2 * N - 1, 2 * N + 3, 2 * N + 4, N + 7 * 4)
        ),
        # States in blocks of 16, N of 32.
        {"shape": "gdn-window-unequal", "batched_tokens": N},
        {"shape": "gdn-window-unequal", "batched_tokens": 2 * N - 1},
    ],
    ids=str,
)
def test_a_prompt_waits_where_the_warning_says_so(
    start: Start, options: dict[str, Any], others: int
) -> None:
    engine, said = start(**options)
    text = "".join(said)
    for_ever = "waits for ever" in text
    room = int(text.partition("room for ")[2].partition(" ")[0] or 0)
    beside_others = "step-below-two-blocks" in text
    drafting = options.get("speculation")
    slots = int(drafting is not None and drafting.method == "draft_model")
    taken = others * (1 + (drafting.drafts if drafting else 0) + slots)
    assert waits(engine, others) == (for_ever or (beside_others and taken > room - N))


@pytest.mark.parametrize("settings", [{"batched_tokens": 10}, {"long_prefill_token_threshold": 10}])
def test_a_step_below_a_block_costs_steps_and_no_hit(
    start: Start, settings: dict[str, int]
) -> None:
    steps, depths = {}, {}
    for name, options in (("short", settings), ("long", {})):
        engine, said = start(**options)
        assert [line.split(":")[1].strip() for line in said] == ["step-below-block"] * bool(options)
        assert all("takes 2 steps, the last one with 6 tokens" in line for line in said)
        assert all("waits for ever" not in line for line in said)
        engine.add(tokens(5, "other"), 100)
        for _ in range(6):
            engine.step()
        prompt = tokens(PROMPT, "long")
        request, before = engine.add(prompt, 1), engine.steps
        while not request.done:
            engine.step()
        steps[name] = engine.steps - before
        engine.run()
        depths[name] = engine.depths(prompt)
    assert steps["short"] >= steps["long"] + PROMPT // N
    assert set(depths["long"]) <= set(depths["short"]) == set(range(1, PROMPT // N + 1))
