"""The share of the budget that one tenant, a ``cache_salt``, cannot exceed."""

from __future__ import annotations

import pytest

from hybrid_pages import BudgetError
from simulation.engine import Engine, StartEngine, connector
from simulation.shapes import BLOCK_TOKENS as N
from simulation.shapes import SHAPES
from test_boundaries import tokens
from test_checkpoints import counters, visit

SMALL = {"host_gb": 0.00012}


def converse(engine: Engine, salt: str | None) -> list[int]:
    """Two turns of a conversation; the prompt of a third."""
    talk = tokens(3 * N + 2, 1)
    for turn in range(2):
        talk += engine.generate(talk, 4, salt=salt).tokens + tokens(N, 10 + turn)
    return talk


def flood(engine: Engine, salt: str | None) -> None:
    for seed in range(1000, 1040):
        visit(engine, tokens(6 * N + 1, seed), salt=salt)


@pytest.mark.usefixtures("seconds_apart")
@pytest.mark.parametrize(
    ("name", "policy"),
    [("gdn", "reuse"), ("gdn", "lru"), ("gdn-window", "reuse"), ("attention-only", "reuse")],
)
@pytest.mark.parametrize(
    ("talker", "flooder", "asynchronous"),
    [("a", "b", True), (None, "b", True), ("a", None, False)],
)
def test_a_flood_of_one_tenant_does_not_push_the_conversation_of_another_out(
    name: str,
    policy: str,
    asynchronous: bool,
    talker: str | None,
    flooder: str | None,
    start: StartEngine,
) -> None:
    restored = {}
    for share in (0.5, 1.0):
        extra = SMALL | {"policy": policy, "tenant_share": share}
        engine = start(SHAPES[name], async_scheduling=asynchronous, extra=extra)
        talk = converse(engine, talker)
        flood(engine, flooder)
        restored[share] = visit(engine, talk, salt=talker)
        engine.check_idle()
        gauges = engine.connector.scheduler.stats()["gauges"]
        assert gauges["tenants"] == (2 if share < 1 else 0)
    # Without a share some of it is lost.
    whole = {share: tokens // N for share, tokens in restored.items()}
    assert whole[1.0] < whole[0.5] == 4


def test_a_prompt_beyond_its_tenants_share_is_counted_by_reason(start: StartEngine) -> None:
    engine = start(extra={"host_gb": 0.0001, "tenant_share": 0.2})
    engine.generate(tokens(20 * N, 1), salt="a")
    assert counters(engine)["skipped_entries:tenant_share"] > 0
    engine.check_idle()


def test_equal_prompts_of_two_tenants_are_apart_and_each_is_restored(start: StartEngine) -> None:
    engine = start(extra={"host_gb": 0.05, "tenant_share": 0.5})
    prompt = tokens(4 * N + 1, 1)
    for salt in (None, "a", "b"):
        assert visit(engine, prompt, salt=salt) == 0
    for salt in (None, "a", "b"):
        assert visit(engine, prompt, salt=salt) == 4 * N
    engine.check_idle()


def test_a_share_without_room_for_an_entry_of_each_kind_is_refused_at_start() -> None:
    with pytest.raises(BudgetError, match=r"tenant_share: expected at least .* found 0\.0001"):
        Engine(transfer=connector(host_gb=0.0001, tenant_share=0.0001))
