"""Stores planned and published by the core, over an engine that is as odd as it likes."""

from __future__ import annotations

import gc
import weakref
from array import array
from types import SimpleNamespace

import pytest

from cache_support import SLOT_BYTES, hybrid, keys, make
from hybrid_pages import InvalidArgumentError
from hybrid_pages._core import PrefixKeys, Run, RunRules, Stores, TableColumns, tail_key

N = 16


def rules(**options):
    given = {"block_tokens": N, "stride": 1, "groups": [(0, 1)], "mode": "all"} | options
    return RunRules(
        **given,
        carries=lambda *_: False,
        processed=lambda request: request.num_computed_tokens,
        pin=lambda pool, blocks: pool.pin(blocks),
        unpin=lambda pool, blocks: pool.unpin(blocks),
        take=lambda pool, count: pool.take(count),
    )


class Block:
    def __init__(self):
        self.ref_cnt = 1


class Pool:
    """Blocks that somebody holds, and those that are pinned beyond that."""

    def __init__(self, count):
        self.blocks = [Block() for _ in range(count)]
        self.asked = []

    def pin(self, blocks):
        self.asked.append(len(blocks))
        for block in blocks:
            assert block.ref_cnt == 0
            block.ref_cnt += 1

    def unpin(self, blocks):
        self.asked.append(-len(blocks))
        for block in blocks:
            block.ref_cnt -= 1

    def take(self, count):
        taken = self.blocks[15 : 15 + count]
        for number, block in enumerate(taken, 15):
            block.ref_cnt, block.block_id = block.ref_cnt + 1, number
        return taken

    @property
    def pinned(self):
        return [number for number, block in enumerate(self.blocks) if block.ref_cnt > 1]


class Engine:
    """An engine with two requests of three blocks each."""

    def __init__(self, ranks=1, **options):
        self.cache, self.namespace = make(slot_bytes=SLOT_BYTES * ranks, ranks=ranks)
        geometry = hybrid(ranks=ranks)
        columns = TableColumns(geometry, [(1, N, 1, 1, None), (0, N, 1, 1, None)])
        self.stores = Stores(geometry, self.cache, columns, rules(**options))
        self.pool = Pool(20)
        self.block_tables = {"a": [[1, 2, 3], [4, 5, 6]], "b": [[7, 8, 9], [10, 11, 12]]}
        self.said, self.begun, self.spares = [], [], True
        self.requests = {name: self.request(name) for name in "ab"}

    def request(self, name):
        request = SimpleNamespace(
            request_id=name,
            num_prompt_tokens=3 * N,
            num_tokens=3 * N,
            num_computed_tokens=0,
            block_hashes=list(keys(f"{name}12")),
        )
        run = Run(request, PrefixKeys(), self.namespace)
        return SimpleNamespace(run=run, request=request)

    def begins(self, tracked, start, tokens):
        self.begun.append((start, tokens))

    def tables(self, name):
        return self.block_tables[name]

    def can_spare(self, blocks):
        return self.spares

    def tail_key(self, tracked, tokens):
        return tail_key(tracked.request.block_hashes[tokens // N - 1], bytes(32), tokens % N)

    def skipped(self, reason, entries):
        self.said.append((reason, entries))

    def skipped_tail(self, reason):
        self.said.append(reason)

    def not_planned(self, tracked, error):
        self.said.append((tracked.request.request_id, type(error)))

    def not_copied(self, outcome, first):
        self.said.append((outcome.rank, outcome.error, first))

    def not_published(self, job, error):
        self.said.append((job, str(error)))

    def not_in_flight(self, job):
        self.said.append(("not in flight", job))

    def step(self, offered=None, **scheduled):
        state = SimpleNamespace(boundary_state_offloads=offered or {}, req_ids=set(scheduled))
        jobs = self.stores.step(self, self.requests, scheduled, state, begins=self.begins)
        self.copies = [copy for entries in jobs.values() for copy in entries.state_copies]
        for name, tokens in scheduled.items():
            self.requests[name].request.num_computed_tokens += tokens
        return {job: len(entries) for job, entries in jobs.items()}

    def ended(self, *outcomes, trusted=True):
        return self.stores.ended(self, {job: list(those) for job, *those in outcomes}, trusted)

    def depth(self, name):
        found = self.requests[name].request.block_hashes
        return self.cache.lookup(self.namespace, found).blocks

    def free(self):
        """Whether nothing is pinned, reserved or in flight."""
        stats = self.cache.stats()
        idle = not self.pool.pinned and not len(self.stores)
        return idle and not stats["leased_slots"]


def outcome(entries, rank=0, **more):
    given = {"error": None, "nbytes": 10, "seconds": 0.5}
    sums = array("Q", range(entries)).tobytes()
    return SimpleNamespace(**(given | {"rank": rank, "checksums": sums} | more))


def test_a_step_stores_what_it_completes_of_each_request():
    engine = Engine()
    assert engine.step(a=2 * N, b=N + 3) == {0: 3, 1: 1}
    assert sorted(engine.pool.pinned) == [2, 4, 5, 10]
    engine.ended((0, outcome(3)), (1, outcome(1)))
    assert engine.stores.take_copied() == (20, 1.0)
    assert engine.stores.take_copied() == (0, 0.0)
    assert engine.depth("a") == 2 and engine.depth("b") == 0
    assert engine.step(b=2 * N - 3) == {2: 3}
    engine.ended((2, outcome(3)))
    assert engine.depth("b") == 3
    assert engine.free() and not engine.said


def test_a_request_whose_plan_fails_costs_no_other():
    engine = Engine()
    del engine.block_tables["a"]
    assert engine.step(a=N, b=N) == {0: 2}
    assert engine.said == [("a", KeyError)]
    engine.block_tables["a"] = [[1, 2, 3], [4, "x", 6]]
    assert engine.step(a=N) == {}
    engine.block_tables["a"] = [[1, 2, 3], [4, 99, 6]]
    assert engine.step(a=N) == {}
    assert [name for name, _ in engine.said] == ["a"] * 3
    engine.ended((0, outcome(2)))
    assert engine.depth("b") == 1 and engine.free()


def test_pins_that_fail_leave_nothing_reserved():
    engine = Engine()
    odd = engine.pool.blocks[1] = engine.pool.blocks[4]
    del odd.ref_cnt
    assert engine.step(a=N) == {}
    odd.ref_cnt = 1
    assert engine.said == [("a", AttributeError)] and engine.free()
    assert engine.step(a=N) == {0: 3}, "with what the failed one left"


def overwriting():
    """An engine whose next step overwrites the state that the first request leaves a tail of."""
    engine = Engine(tails="copied", mode="adaptive")
    engine.requests["a"].run.want_tails([N + 3])
    return engine


def test_a_state_that_the_next_step_overwrites_is_read_from_a_block_that_is_taken():
    engine = overwriting()
    assert engine.step(a=N + 3) == {0: 3}
    assert [(source, target) for _, source, target in engine.copies] == [(2, 15)]
    assert engine.pool.pinned == [4, 5, 15]
    engine.ended((0, outcome(3)))
    assert engine.free() and not engine.said
    # What is stored already needs no copy.
    other = engine.requests["b"] = engine.request("a")
    other.request.request_id = "b"
    other.run.want_tails([N + 3])
    assert engine.step(b=N + 3) == {}
    assert engine.free() and not engine.said


@pytest.mark.parametrize("fault", ["spare", "take", "id", "pin", "given up"])
def test_a_block_that_was_taken_is_given_back_once(fault):
    engine = overwriting()
    taken, pinned = engine.pool.blocks[15], engine.pool.blocks[5]
    if fault == "spare":
        engine.spares = False
    elif fault == "take":
        engine.pool.take = None
    elif fault == "id":
        engine.pool.take = lambda count: engine.pool.pin_more(taken)
        engine.pool.pin_more = lambda block: setattr(block, "ref_cnt", 2) or [block]
    elif fault == "pin":
        del pinned.ref_cnt
    jobs = engine.step(a=N + 3)
    pinned.ref_cnt = 1 if fault == "pin" else pinned.ref_cnt
    if fault == "given up":
        assert taken.ref_cnt == 2
        engine.stores.drop_jobs(engine, list(jobs))
        assert not engine.said
    else:
        found = {"spare": "no_free_blocks", "take": ("a", TypeError)}
        assert engine.said == [found.get(fault, ("a", AttributeError))] and not jobs
    assert taken.ref_cnt == 1 and engine.free()


def test_a_request_without_a_name_leaves_nothing_pinned():
    class Nameless(SimpleNamespace):
        asked = 0

        @property
        def request_id(self):
            self.asked += 1
            if self.asked == 2:
                raise AttributeError("request_id")
            return "a"

        @request_id.setter
        def request_id(self, name):
            pass

    engine = Engine()
    nameless = Nameless(**vars(engine.requests["a"].request))
    run = Run(nameless, PrefixKeys(), engine.namespace)
    engine.requests["a"] = SimpleNamespace(run=run, request=nameless)
    assert engine.step(a=2 * N) == {}
    assert engine.said == [("a", AttributeError)] and engine.free()


def test_outcomes_may_be_taken_back_while_they_are_told():
    engine = Engine()
    engine.step(b=N)
    outcomes = {7: [outcome(1)], 8: [outcome(1)], 0: [outcome(2)]}
    engine.not_in_flight = lambda job: outcomes.pop(15 - job, None)
    engine.stores.ended(engine, outcomes, True)
    assert engine.stores.take_copied() == (10, 0.5) and engine.free()


def test_a_block_that_nobody_holds_is_pinned_and_let_go_by_the_pool():
    engine = Engine()
    free, held = (engine.pool.blocks[number] for number in engine.block_tables["a"][1][:2])
    free.ref_cnt = 0
    engine.step(a=2 * N)
    assert engine.pool.asked == [1] and (free.ref_cnt, held.ref_cnt) == (1, 2)
    held.ref_cnt -= 1  # its request has ended
    engine.ended((0, outcome(3)))
    assert engine.pool.asked == [1, -2], "which of them are free again is for the pool to know"
    assert (free.ref_cnt, held.ref_cnt) == (0, 0)


def test_a_pool_that_cannot_pin_leaves_blocks_as_they_were():
    engine = Engine()
    free, held = (engine.pool.blocks[number] for number in engine.block_tables["a"][1][:2])
    free.ref_cnt = 0
    engine.pool.pin = None
    assert engine.step(a=2 * N) == {}
    assert (free.ref_cnt, held.ref_cnt) == (0, 1)
    assert engine.said == [("a", TypeError)] and engine.free()


def test_whoever_wants_the_engine_to_end_is_not_held_up():
    engine = Engine()

    def interrupted(name):
        raise KeyboardInterrupt

    engine.step(b=N)
    tables, engine.tables = (
        engine.tables,
        lambda name: interrupted(name) if name == "a" else tables(name),
    )
    with pytest.raises(KeyboardInterrupt):
        engine.step(b=N, a=N)
    engine.tables = tables
    assert len(engine.stores) == 1, "what was planned before it in the same step is dropped"

    class Interrupting:
        rank = 0

        @property
        def error(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.ended((0, Interrupting()))
    assert engine.free() and not engine.said


@pytest.mark.parametrize(
    "wrong",
    [
        outcome(2, checksums=b"short"),
        outcome(2, checksums=[1, 2]),
        outcome(3),
        outcome(2, nbytes=-1),
        outcome(2, seconds="x"),
    ],
)
def test_an_outcome_that_makes_no_sense_publishes_nothing(wrong):
    engine = Engine()
    engine.step(a=N)
    engine.ended((0, wrong))
    assert engine.stores.take_copied() == (0, 0.0)
    assert [job for job, _ in engine.said] == [0]
    assert engine.depth("a") == 0 and engine.free()


def test_jobs_and_ranks_that_nobody_knows():
    engine = Engine()
    engine.step(a=N)
    engine.ended((7, outcome(2)))
    engine.ended((0, outcome(2, rank=1)))
    unknown, (job, text) = engine.said
    assert unknown == ("not in flight", 7)
    assert job == 0 and "rank: expected one below 1, found 1" in text
    assert engine.free(), "nobody knows what that rank has copied"
    engine.ended((0, outcome(2)))
    assert engine.said[2:] == [("not in flight", 0)], "it has ended"
    assert engine.depth("a") == 0


@pytest.mark.parametrize("unconfirmed", [True, False])
def test_what_is_unconfirmed_or_dropped_is_not_published(unconfirmed):
    engine = Engine()
    engine.step(a=N)
    if unconfirmed:
        engine.ended((0, outcome(2)), trusted=False)
    else:
        engine.stores.drop_jobs(engine, [0, 99])
    assert engine.said == ([("unconfirmed", 2)] if unconfirmed else [])
    assert engine.depth("a") == 0 and engine.free()


def test_what_failed_or_is_void_is_not_published_nor_is_what_follows_it():
    engine = Engine()
    engine.step(a=N, b=N)
    engine.ended((0, outcome(2, error="torn", checksums=b"")))
    engine.stores.void(lambda name, blocks: name == "b" and engine.pool.blocks[10] in blocks)
    engine.ended((1, outcome(2)))
    assert engine.step(a=N) == {}
    assert engine.said == [(0, "torn", True), ("invalid", 2), ("orphan", 2)]
    assert engine.depth("a") == engine.depth("b") == 0 and engine.free()


def test_a_run_is_told_of_what_is_unusual_and_of_nothing_else():
    engine = Engine()
    a = engine.requests["a"]
    engine.step(a=N)
    engine.step(a=4)
    assert engine.begun == [(0, N)]
    a.request.num_computed_tokens = N - 2
    engine.step(a=1)
    a.run.steered = True
    engine.step(a=1)
    assert [start for start, _ in engine.begun] == [0, N - 2, N - 1]


def test_a_run_that_only_decodes_says_until_when():
    engine = Engine()
    a = engine.requests["a"]
    engine.step(a=3 * N)
    a.request.num_tokens += 1
    engine.step(a=1)
    assert (a.run.position, a.run.quiet_until) == (3 * N + 1, 4 * N)
    a.request.num_tokens += 1
    engine.step(a=1)
    assert (a.run.position, a.run.quiet_until) == (3 * N + 2, 4 * N)
    assert engine.said == [] and len(engine.begun) == 1


def test_a_hand_over_that_makes_no_sense_costs_only_itself():
    engine = Engine()
    run = engine.requests["a"].run
    for wrong in ([(0, "x", N)], [5], 7):
        engine.step({"a": wrong}, a=N)
    assert run.position == 3 * N
    assert [name for name, _ in engine.said] == ["a"] * 3 and engine.free()


def test_engines_that_write_nothing_still_follow_runs():
    cache, _ = make()
    columns = TableColumns(hybrid(), [(1, N, 1, 1, None), (0, N, 1, 1, None)])
    engine = Engine()
    engine.stores = Stores(hybrid(), cache, columns, rules(), writes=False)
    assert engine.step(a=2 * N) == {}
    assert engine.requests["a"].run.position == 2 * N


def test_wrong_rules_are_rejected():
    with pytest.raises(InvalidArgumentError, match="mode: expected none"):
        rules(mode="some")
    for wrong in ({"block_tokens": 0}, {"stride": 0}):
        with pytest.raises(InvalidArgumentError, match="rules: expected"):
            rules(**wrong)
    with pytest.raises(ValueError, match="length 2"):
        rules(groups=[(0,)])
    with pytest.raises(InvalidArgumentError, match="1 recurrent groups, found 2"):
        Engine(groups=[(0, 1), (0, 1)])


def test_nothing_keeps_an_engine_that_nobody_needs():
    engine = Engine()
    engine.step(a=N)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
