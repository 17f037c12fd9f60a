"""A store's slots and blocks stay the ranks' until all have spoken, whatever one of them says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from test_stores import Engine, N, outcome

RANKS = 3
ENTRIES = 2


class Interrupting(SimpleNamespace):
    @property
    def rank(self):
        raise KeyboardInterrupt


def nameless(entries=ENTRIES):
    wrong = outcome(entries)
    del wrong.rank
    return wrong


# What cannot be read of rank 0's outcome, its rank included or not.
UNREADABLE = {
    "no rank": nameless,
    "a rank of another type": lambda: outcome(ENTRIES, rank="0"),
    "a rank that is no number": lambda: outcome(ENTRIES, rank=None),
    "a rank that is not there": lambda: outcome(ENTRIES, rank=RANKS),
    "a negative rank": lambda: outcome(ENTRIES, rank=-1),
    "a rank beyond all numbers": lambda: outcome(ENTRIES, rank=2**64),
    "no outcome at all": lambda: None,
    "too few checksums": lambda: outcome(ENTRIES - 1),
    "too many checksums": lambda: outcome(ENTRIES + 1),
    "checksums of another type": lambda: outcome(ENTRIES, checksums=[1, 2]),
    "a negative size": lambda: outcome(ENTRIES, nbytes=-1),
    "seconds of another type": lambda: outcome(ENTRIES, seconds="x"),
    "an error of its own": lambda: SimpleNamespace(rank=0),
}


class Filling(Engine):
    """An engine of three ranks that are all filling the slots of one store."""

    def __init__(self):
        super().__init__(ranks=RANKS)
        assert self.step(a=N) == {0: ENTRIES}
        self.held = self.cache.stats()["leased_slots"]

    def is_filling(self):
        """Whether everything that a rank may still touch is held for it."""
        leased = self.cache.stats()["leased_slots"]
        return len(self.stores) == 1 and leased == self.held > 0 and len(self.pool.pinned) == 2

    def nothing_published(self):
        return self.depth("a") == 0 and self.cache.stats()["pages"] == 0 and self.free()


@pytest.mark.parametrize("place", range(RANKS))
@pytest.mark.parametrize("unreadable", UNREADABLE.values(), ids=UNREADABLE)
def test_all_ranks_are_waited_for_when_one_cannot_be_read(unreadable, place):
    engine = Filling()
    said = [outcome(ENTRIES, rank=1), outcome(ENTRIES, rank=2)]
    said.insert(place, unreadable())
    for count, one in enumerate(said, 1):
        assert engine.is_filling()
        engine.ended((0, one))
        assert engine.is_filling() == (count < RANKS)
    assert engine.nothing_published() and engine.cache.audit() is None
    assert [job for job, _ in engine.said] == [0], "said once"
    assert engine.stores.take_copied() == (0, 0.0)
    assert engine.step(a=N) == {}, "what follows hangs from what is missing"


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("unreadable", UNREADABLE.values(), ids=UNREADABLE)
def test_a_rank_that_speaks_twice_stands_for_no_other(unreadable, together):
    engine = Filling()
    if together:
        engine.ended((0, unreadable(), unreadable()))
    else:
        engine.ended((0, unreadable()))
        engine.ended((0, unreadable()))
    assert engine.is_filling()
    engine.ended((0, outcome(ENTRIES, rank=1)))
    assert engine.is_filling()
    engine.ended((0, outcome(ENTRIES, rank=2)))
    assert engine.nothing_published()


def test_a_rank_that_takes_back_what_it_said_publishes_nothing():
    engine = Filling()
    engine.ended((0, outcome(ENTRIES, error="torn")))
    engine.ended((0, outcome(ENTRIES)))
    engine.ended((0, outcome(ENTRIES, rank=1), outcome(ENTRIES, rank=2)))
    assert engine.nothing_published()
    ((job, text),) = engine.said
    assert job == 0 and "expected one outcome of rank 0, found a second one" in text


@pytest.mark.parametrize("silent", range(RANKS))
def test_a_rank_that_never_answers_keeps_what_it_may_touch(silent):
    engine = Filling()
    for rank in {0, 1, 2} - {silent}:
        engine.ended((0, outcome(ENTRIES, rank=rank)))
    for _ in range(3):
        engine.ended()
        engine.ended((0,))
        assert engine.is_filling()
    assert engine.said == [] and engine.depth("a") == 0
    engine.ended((0, outcome(ENTRIES, rank=silent)))
    assert engine.depth("a") == 1 and engine.free()


@pytest.mark.parametrize("wrong", [7, None, "ab"])
def test_what_is_no_list_of_outcomes_is_nobodys_word(wrong):
    engine = Filling()
    engine.stores.ended(engine, {0: wrong}, True)
    assert engine.is_filling() and [job for job, _ in engine.said] == [0]
    engine.ended((0, *(outcome(ENTRIES, rank=rank) for rank in range(RANKS))))
    assert engine.nothing_published()


def test_outcomes_that_cannot_be_read_to_the_end_are_taken_as_far_as_they_go():
    def broken():
        yield outcome(ENTRIES, rank=2)
        raise RuntimeError("torn")

    engine = Filling()
    engine.stores.ended(engine, {0: broken()}, True)
    assert engine.is_filling() and engine.said == [(0, "torn")]
    engine.ended((0, outcome(ENTRIES, rank=0)))
    assert engine.nothing_published()


@pytest.mark.parametrize("job", ["0", None, -1, 2**64, 1.5])
def test_a_job_that_cannot_be_read_costs_no_other_its_outcomes(job):
    engine = Filling()
    said = [outcome(ENTRIES, rank=rank) for rank in range(RANKS)]
    engine.stores.ended(engine, {job: said, 0: said}, True)
    assert engine.said == [("not in flight", job)]
    assert engine.depth("a") == 1 and engine.free()


def test_whoever_wants_the_engine_to_end_frees_nothing_and_costs_no_other_job():
    engine = Engine(ranks=RANKS)
    engine.step(a=N, b=N)
    said = [outcome(ENTRIES, rank=rank) for rank in range(RANKS)]
    with pytest.raises(KeyboardInterrupt):
        engine.ended((0, Interrupting()), (1, *said))
    assert engine.depth("b") == 1 and len(engine.stores) == 1
    assert engine.cache.stats()["leased_slots"] and engine.pool.pinned
    engine.ended((0, *said[1:]))
    assert engine.depth("a") == 0 and engine.free()
