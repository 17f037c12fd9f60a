"""What vLLM calls in every step: answered by the core, or by Python if that has more to do."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import pytest

from hybrid_pages import InvalidArgumentError
from hybrid_pages._core import StepCalls
from test_stores import Engine, N, outcome


class Outcomes:
    """What the workers send."""

    def __init__(self, stores=(), **more):
        self.stores = dict(stores)
        self.loads, self.reports, self.ready = {}, [], {}
        vars(self).update(more)


class Half:
    """Python's answers, which it counts, over the stores of an engine."""

    def __init__(self, figures_every=1e9):
        self.engine, self.asked, self.figures = Engine(), [], "figures"
        self.arrived, self.in_flight, self.due = set(), {}, []
        self.storing = False
        self.calls = StepCalls(
            self, self.engine.requests, self.arrived, figures_every=figures_every
        )

    def serve(self, stores=None):
        self.calls.serve(
            stores or self.engine.stores,
            self.engine,
            begins=self.engine.begins,
            planned=None,
            waiting=(self.in_flight, self.due),
            metadata=lambda name, jobs: {job: len(entries) for job, entries in jobs.items()},
            name="half",
            nothing={},
            outcomes=Outcomes,
        )

    def step(self, output):
        self.asked.append("step")
        return "asked"

    def reported(self, output):
        self.asked.append("reported")

    def take_stats(self):
        self.asked.append("stats")
        return self.figures

    def plan(self, total=None, *, state=True, **scheduled):
        """A step over so many tokens of each request; ``total`` of all, as vLLM says."""
        blocks = SimpleNamespace(boundary_state_offloads={}, req_ids=set(scheduled))
        return self.calls.step(
            SimpleNamespace(
                total_num_scheduled_tokens=sum(scheduled.values()) if total is None else total,
                num_scheduled_tokens=scheduled,
                kv_connector_block_state=blocks if state else None,
            )
        )

    def report(self, found, **more):
        given = {"invalid_block_ids": set(), "finished_recving": None} | more
        self.calls.reported(SimpleNamespace(kv_connector_worker_meta=found, **given))


@pytest.fixture
def half():
    made = Half()
    made.serve()
    return made


def test_a_usual_step_runs_no_python(half):
    assert half.plan(a=2 * N) == {0: 3}
    half.report(None)
    half.report(Outcomes({0: [outcome(3)]}))
    assert half.engine.depth("a") == 2 and half.engine.free()
    half.engine.requests["a"].request.num_computed_tokens = 2 * N
    assert half.plan(a=3) == {}
    assert half.asked == []


def test_python_is_asked_before_anything_is_served():
    half = Half()
    assert half.plan(a=N) == "asked"
    half.report(Outcomes())
    half.report(None)
    assert half.asked == ["step", "reported", "reported"]


def test_python_is_asked_while_something_waits(half):
    for waiting, add in ((half.in_flight, half.in_flight.update), (half.due, half.due.extend)):
        half.asked.clear()
        add({"a": 1})
        assert half.plan(a=N) == "asked"
        half.report(Outcomes())
        assert half.asked == ["step", "reported"]
        waiting.clear()
    assert half.plan(a=N) == {0: 2}


@pytest.mark.parametrize("first", [True, False])
def test_python_is_asked_for_good_once_it_stops(first):
    half = Half()
    if first:
        half.serve()
        half.plan(a=N)
    half.calls.rest()
    half.serve()
    assert half.plan(a=N) == "asked"
    half.report(Outcomes({0: [outcome(2)]}))
    assert half.asked == ["step", "reported"]
    assert half.engine.depth("a") == 0


@pytest.mark.parametrize("odd", [{"total": 0}, {"state": False}])
def test_steps_without_tokens_or_blocks_are_for_python(half, odd):
    assert half.plan(**odd) == "asked"


@pytest.mark.parametrize("name", ["loads", "reports", "ready"])
def test_more_than_outcomes_of_stores_is_for_python_and_so_are_the_stores(half, name):
    half.plan(a=N)
    half.report(Outcomes({0: [outcome(2)]}, **{name: {1: 1}}))
    assert half.asked == ["reported"] and len(half.engine.stores) == 1


@pytest.mark.parametrize("more", [{"invalid_block_ids": {3}}, {"finished_recving": {"a"}}])
def test_loads_that_ended_or_failed_are_for_python(half, more):
    half.report(None, **more)
    half.report(Outcomes(), **more)
    assert half.asked == ["reported", "reported"]


def test_what_another_connector_sends_is_for_python(half):
    class Others(Outcomes):
        pass

    half.report(Others())
    half.report(5)
    assert half.asked == ["reported", "reported"]


def test_what_is_served_first_stays(half):
    other = Engine()
    half.serve(other.stores)
    half.plan(a=N)
    assert len(half.engine.stores) == 1 and len(other.stores) == 0


def test_errors_are_the_callers(half):
    with pytest.raises(AttributeError, match="total_num_scheduled_tokens"):
        half.calls.step(5)
    with pytest.raises(AttributeError, match="invalid_block_ids"):
        half.calls.reported(5)
    with pytest.raises(TypeError):
        half.calls.step(
            SimpleNamespace(
                total_num_scheduled_tokens=1,
                num_scheduled_tokens=[1],
                kv_connector_block_state=SimpleNamespace(boundary_state_offloads={}, req_ids=()),
            )
        )
    half.step = None
    with pytest.raises(TypeError):
        half.plan(total=0)
    assert half.plan(a=N) == {0: 2}


def test_figures_of_a_busy_engine_go_out_now_and_then(half):
    half.engine.requests.clear()
    assert [half.calls.stats() for _ in range(3)] == ["figures"] * 3, "nothing is under way"
    half.arrived.add("a")
    assert half.calls.stats() is None
    half.arrived.clear()
    half.engine.requests["a"] = half.engine.request("a")
    assert half.calls.stats() is None
    half.plan(a=N)
    half.engine.requests.clear()
    assert half.calls.stats() is None, "a store is in flight"
    half.report(Outcomes({0: [outcome(2)]}))
    assert half.calls.stats() == "figures"


def test_figures_go_out_again_in_time():
    half = Half(figures_every=0)
    assert [half.calls.stats() for _ in range(3)] == ["figures"] * 3
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgumentError, match="figures_every: expected seconds, found"):
            Half(figures_every=wrong)


def test_a_busy_engine_that_counts_nothing_is_asked_no_more_often(half):
    half.figures = None
    assert [half.calls.stats() for _ in range(3)] == [None] * 3
    assert half.asked == ["stats"]
    half.engine.requests.clear()
    half.figures = "figures"
    assert half.calls.stats() == "figures", "it has come to rest"


def test_before_anything_is_served_python_knows_of_copies():
    half = Half()
    half.engine.requests.clear()
    half.storing = True
    assert [half.calls.stats() for _ in range(3)] == ["figures", None, None]
    half.storing = False
    assert half.calls.stats() == "figures"


def test_nothing_keeps_a_half_that_nobody_needs():
    made = Half()
    made.serve()
    made.plan(a=N)
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
