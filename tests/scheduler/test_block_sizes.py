"""Groups whose engine blocks hold different numbers of tokens, as in Gemma 4."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from vllm.v1.kv_cache_interface import MambaSpec

from hybrid_pages.vllm.config.support import UnsupportedError
from hybrid_pages.vllm.messages import LoadEntry
from hybrid_pages.vllm.scheduler.loads.load import Loads
from hybrid_pages.vllm.scheduler.stale.invalid import spread
from simulation.audit import WrongEntry
from simulation.copies import Script
from simulation.engine import Engine, StartEngine, connector
from simulation.memory import UnexpectedWrite
from simulation.runner import Mismatch
from simulation.shapes import SHAPES, UNEQUAL, Shape, attention, gdn

N = 32
SMALL = ["gemma4-31b", "gemma4-e4b", "gdn-window-unequal"]


def tokens(count: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(500) for _ in range(count)]


def failures(engine: Engine) -> dict[str, float]:
    counters = engine.half.stats()["counters"]
    return {name: count for name, count in counters.items() if name.startswith("failures")}


def loads_of(engine: Engine, script: Script, kind: str) -> list[list[int | None]]:
    """The engine blocks that entries of a kind were loaded into."""
    kinds = {item.index: item.kind for item in engine.half.connection.geometry.classes}
    return [entry[2] for job in script.of("load") for entry in job if kinds[entry[0]] == kind]


# what is loaded and what is not


# Known report: LMCache#4966.
# Known report: vLLM#56871.
@pytest.mark.parametrize("name", [*SMALL, "two-recurrent-kinds", "gdn-compressed-ring"])
def test_entries_take_the_room_of_their_own_groups_however_many_there_are(
    name: str, start: StartEngine
) -> None:
    engine, prompt, depths = start(SHAPES[name]), tokens(4 * N + 3), []
    engine.generate(prompt, max_tokens=2)
    stats, needed, taken = engine.cache.stats(), 0, 0
    for item in engine.half.connection.geometry.classes:
        kind = {"attention": "page", "window": "window", "recurrent": "checkpoint"}[item.kind]
        needed += stats[f"{kind}s"] * item.entry_bytes
        taken += stats[f"{kind}_bytes"]
    assert 0 < needed <= taken < needed * 5 / 4, "the rest is the ends of slots"
    # A host that has room for that and no more keeps all of it.
    for extra in ({}, {"host_gb": taken / 2**30}):
        engine = start(SHAPES[name], extra=extra)
        engine.generate(prompt, max_tokens=2)
        engine.forget_local()
        depths.append(engine.generate(prompt, max_tokens=1).restored_tokens)
    assert engine.cache.stats()["slots"] * stats["slot_bytes"] == taken
    assert depths[0] == depths[1] >= 4 * N
    engine.check_idle()


def test_a_window_is_loaded_as_far_as_it_reaches(start: StartEngine, script: Script) -> None:
    engine = start(SHAPES["gemma4-31b"], extra={"verify_on_load": True})
    prompt = tokens(4 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt).restored_tokens == 4 * N
    # A window of 40 tokens at token 128 begins with token 89: in the fifth of the blocks of 16.
    assert [[bool(block) for block in entry] for entry in loads_of(engine, script, "window")] == [
        [False, True] * 3,
        [True, True] * 3,
    ]
    assert len(loads_of(engine, script, "attention")) == 4
    assert failures(engine) == {}
    engine.check_idle()


def test_only_the_parts_that_are_loaded_are_counted(start: StartEngine) -> None:
    engine = start(SHAPES["gemma4-31b"])
    prompt = tokens(4 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    engine.generate(prompt)
    sizes = {item.kind: item.entry_bytes for item in engine.half.connection.geometry.classes}
    loaded = engine.half.stats()["counters"]
    assert loaded["loaded_bytes:pages"] == 4 * sizes["attention"]
    assert loaded["loaded_bytes:windows"] == sizes["window"] // 2 + sizes["window"]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_deeper_tail_is_loaded_behind_a_local_hit(
    name: str, asynchronous: bool, start: StartEngine, script: Script
) -> None:
    engine = start(SHAPES[name], async_scheduling=asynchronous, extra={"checkpoint_mode": "all"})
    prompt = tokens(6 * N + 1)
    for blocks in (4, 6):
        engine.generate(prompt[: blocks * N + 1])
    assert engine.reset_prefix_cache()
    engine.generate(prompt[: 4 * N + 1])
    before = len(loads_of(engine, script, "attention"))
    again = engine.generate(prompt)
    assert (again.local_tokens, again.restored_tokens) == (4 * N, 2 * N)
    assert len(loads_of(engine, script, "attention")) == before + 2
    assert failures(engine) == {}
    engine.check_idle()


def test_a_window_narrower_than_a_block_is_stored_while_an_answer_passes_it(
    start: StartEngine,
) -> None:
    """By then vLLM has freed the first of the window's engine blocks."""
    engine = start(SHAPES["three-sizes"])
    prompt = tokens(90)
    answer = engine.generate(prompt, 110).tokens
    assert engine.reset_prefix_cache()
    assert engine.generate(prompt + answer).restored_tokens == 192
    engine.check_idle()


def test_a_state_is_made_at_the_last_boundary_though_vllm_ends_its_step_later(
    start: StartEngine,
) -> None:
    engine = start(SHAPES["gdn-one-head"], batched_tokens=400)
    prompt = tokens(4 * N + 20)
    assert engine.config.cache_config.block_size == 16
    engine.generate(prompt)
    assert engine.depths(prompt) == [4]
    for lost in (8, 128):
        engine.config.cache_config.block_size = lost
        assert engine.reset_prefix_cache()
        assert engine.generate(prompt).restored_tokens == 4 * N + 16, "where vLLM's step ends"
        assert engine.config.cache_config.block_size == 16
    engine.check_idle()


@pytest.mark.parametrize("shape", UNEQUAL, ids=lambda shape: shape.name)
def test_the_identity_names_the_blocks_of_every_group(shape: Any, start: StartEngine) -> None:
    engine = start(shape)
    sizes = [blocks.tokens for blocks in engine.half.connection.grid.groups]
    for geometry in (engine.half.connection.agreement.plan, engine.half.connection.geometry):
        assert geometry.identity["engine_block_tokens"] == ",".join(map(str, sizes))
    assert engine.half.connection.grid.block_tokens == engine.block_tokens


# what is found if it is wrong


def shifted(tables: Sequence[Sequence[Any]], table: int, by: int) -> list[list[Any]]:
    """Block tables of which one is off by a column."""
    shown = [list(ids) for ids in tables]
    shown[table] = shown[table][-1:] + shown[table] if by < 0 else shown[table][1:]
    return shown


def see_shifted_tables(
    engine: Engine, table: int, by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Makes the connector see one block table off by a column, wherever it stores from it."""
    stores = engine.half.connection.stores
    tables, finish = stores.tables, stores.finish
    monkeypatch.setattr(stores, "tables", lambda name: shifted(tables(name), table, by))
    monkeypatch.setattr(
        stores, "finish", lambda tracked, ended: finish(tracked, shifted(ended, table, by))
    )


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize(("name", "group"), [("gemma4-31b", 1), ("gemma4-e4b", 0)])
def test_a_page_from_a_column_off_by_one_is_found(
    name: str, group: int, by: int, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(SHAPES[name])
    see_shifted_tables(engine, engine.half.connection.grid.groups[group].table, by, monkeypatch)
    engine.generate(tokens(5 * N + 1), 3)
    with pytest.raises(WrongEntry):
        engine.check_idle()


@pytest.mark.parametrize("by", [-1, 1])
def test_a_state_from_a_column_off_by_one_is_lost_and_never_wrong(
    by: int, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step ended in that column: there is no block, or another one than vLLM hands over."""
    engine = start(SHAPES["gdn-one-head"], extra={"checkpoint_mode": "all"}, batched_tokens=N)
    prompt = tokens(5 * N + 1)
    engine.generate(prompt, 3)
    assert engine.depths(prompt) == [1, 2, 3, 4, 5]
    engine.half.reset()
    assert engine.reset_prefix_cache()
    groups = [
        item.groups for item in engine.half.connection.geometry.classes if item.kind == "recurrent"
    ]
    table = engine.half.connection.grid.groups[groups[0][0]].table
    see_shifted_tables(engine, table, by, monkeypatch)
    # Of a tail, nothing but its column says which state it is.
    monkeypatch.setattr(engine.half.connection.stores, "no_tails", "unconfirmed")
    engine.generate(prompt, 3)
    assert engine.depths(prompt) != [1, 2, 3, 4, 5]
    engine.check_idle()


def test_a_load_into_the_blocks_of_a_local_hit_is_found(
    start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(SHAPES["gemma4-31b"])
    prompt = tokens(6 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    engine.generate(prompt[: 4 * N + 1])
    half = engine.half
    acquire = half.connection.cache.acquire

    class Deeper:
        """A cache whose leases begin one block early, with an entry that has other bytes."""

        def __getattr__(self, name: str) -> Any:
            return getattr(half.connection.cache, name)

        def acquire(self, *args: Any, first: int, **options: Any) -> Any:
            lease = acquire(*args, first=first - 1, **options)
            slot = lease.entries[0].slots[0]
            half.connection.arena.write(slot, bytes(half.connection.arena.slot_bytes))
            return lease

    monkeypatch.setattr(half.connection.loads, "cache", Deeper())
    engine.add(prompt)
    with pytest.raises(UnexpectedWrite):
        engine.run()


def test_a_load_into_no_block_is_found(start: StartEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's block 0 belongs to nobody."""
    entries = Loads._entries

    def everywhere(*given: Any) -> list[LoadEntry]:
        return [
            (item, slots, [block or 0 for block in blocks], checksums)
            for item, slots, blocks, checksums in entries(*given)
        ]

    monkeypatch.setattr(Loads, "_entries", everywhere)
    engine = start(SHAPES["gemma4-kernel-blocks"])
    prompt = tokens(4 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    engine.add(prompt)
    with pytest.raises(UnexpectedWrite):
        engine.run()


@pytest.mark.parametrize("name", SMALL)
def test_a_part_of_a_window_that_was_left_out_is_found(
    name: str, start: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = Loads._entries
    engine = start(SHAPES[name])
    windows = {
        item.index for item in engine.half.connection.geometry.classes if item.kind == "window"
    }
    assert windows

    def fewer(*given: Any) -> list[LoadEntry]:
        found = entries(*given)
        last = {item: at for at, (item, *_) in enumerate(found) if item in windows}
        return [entry for at, entry in enumerate(found) if at not in last.values()]

    monkeypatch.setattr(Loads, "_entries", fewer)
    prompt = tokens(4 * N + 1)
    engine.generate(prompt)
    assert engine.reset_prefix_cache()
    engine.add(prompt)
    with pytest.raises(Mismatch):
        engine.run()


# what is refused, and why


def states_in_larger_blocks() -> MambaSpec:
    return replace(gdn(), block_size=N)


def test_vllm_alone_keeps_wrong_states_in_blocks_that_are_larger_than_pages() -> None:
    """A step that begins amid such a block and ends beyond it leaves its first state there."""
    shape = Shape("states in larger blocks", (states_in_larger_blocks, attention))
    with Engine(shape, batched_tokens=2 * N, retention=None) as engine:
        prompt = tokens(2 * N - 4)
        engine.add(tokens(N + 18, 1))  # its first step ends after 48 tokens
        engine.add(prompt)  # its first step has room for 16 tokens
        engine.run()
        engine.add(prompt[: N + 8])
        with pytest.raises(Mismatch, match=r"state after 32 tokens.*found the state after 16"):
            engine.run()
    with pytest.raises(UnsupportedError, match="expected states in the smallest blocks"):
        Engine(shape, transfer=connector())


# blocks that another connector could not load


def test_invalid_blocks_spread_by_tokens() -> None:
    tables = {"a": [[1, 2, 3], [11, 12, 13, 14, 15, 16]], "b": [[1, 4], [21, 22, 23, 24]]}
    wrong, firsts = spread([13], tables, [32, 16])
    assert firsts == {"a": 32}
    assert wrong == {13, 14, 15, 16, 2, 3}
    wrong, firsts = spread([1], tables, [32, 16])
    assert firsts == {"a": 0, "b": 0}
    assert wrong == {block for groups in tables.values() for ids in groups for block in ids}
