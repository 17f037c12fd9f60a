"""`hybrid-pages verify` without an engine: comparison, verdict, score, report."""

from __future__ import annotations

import json
import math
import os
import signal
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from rich.console import Console

from hybrid_pages import HybridPagesError, cli
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.verify import main
from hybrid_pages.verify.answers import Answer, first_difference
from hybrid_pages.verify.process import EngineFailed, EngineProcess
from hybrid_pages.verify.prompts import VerifyPrompt
from hybrid_pages.verify.report import as_json, markdown, report, show
from hybrid_pages.verify.runs import COLD, COLD_AGAIN, LOCAL, LOCAL_AGAIN, Runs, collect
from hybrid_pages.verify.tiers import EngineStart, arrange
from hybrid_pages.verify.verdict import (
    DIFFERS,
    EQUAL,
    NOTHING,
    WITHIN,
    judge,
    scores,
    unfit_for,
)
from hybrid_pages.vllm.config.settings import PLANT_VARIABLE, PLANTS, Settings

N = 32


def answer(*values: float, tokens: tuple[int, ...] = (), **more: Any) -> Answer:
    """An answer whose chosen tokens have these log-probabilities; 99 is as likely everywhere."""
    tokens = tokens or tuple(range(len(values)))
    return Answer(
        tokens,
        tuple({token: value, 99: -9.0} for token, value in zip(tokens, values, strict=True)),
        **more,
    )


# ---- answers


def test_equal_answers_are_the_same_and_have_no_difference():
    one, other = answer(-1.0, -2.0), answer(-1.0, -2.0)
    assert one.same(other) and one.distance(other) == 0
    assert first_difference(one, other) is None


def test_a_difference_is_found_where_it_begins():
    one, other = answer(-1.0, -2.0, -3.0), answer(-1.0, -2.5, -3.0)
    assert not one.same(other) and one.distance(other) == 0.5
    found = first_difference(one, other)
    assert (found.position, found.expected, found.found) == (
        1,
        (1, "", -2.0, -2.5),
        (1, "", -2.0, -2.5),
    )


def test_behind_another_token_nothing_is_compared():
    one = answer(-1.0, -2.0, -3.0, tokens=(5, 6, 7))
    other = answer(-1.0, -2.0, -90.0, tokens=(5, 8, 7))
    # 6 is listed by one side alone; the other lists nothing less likely than -9.
    assert one.distance(other) == 7.0
    assert first_difference(one, other).position == 1


def test_what_is_not_a_number_is_never_near():
    one = answer(math.nan)
    assert not one.is_whole and one.distance(one) == math.inf and not one.same(answer(math.nan))
    assert answer(-math.inf).distance(answer(-math.inf)) == 0


def test_an_answer_that_goes_on_differs():
    assert answer(-1.0).distance(answer(-1.0, -2.0)) == math.inf
    assert not answer(-1.0).same(answer(-1.0, -2.0))


def test_the_source_of_hits_is_told_and_several_are():
    found = {"tokens": [1], "likely": [{"1": -0.5}], "words": [], "text": "", "cached": 64}
    assert Answer.read(found, {"host": 64.0, "local": 0.0}).source == "host"
    assert Answer.read(found, {"host": 32.0, "local": 32.0}).source == "host 32, local 32"
    assert Answer.read(found, {}).likely == ({1: -0.5},)


# ---- settings of verify's engines


RUN = EngineStart("run")


def arranged(settings: dict[str, Any], start: EngineStart = RUN, **transfer: Any) -> Any:
    ours = {"kv_connector": "HybridPagesConnector", "kv_role": "kv_both"}
    return arrange({**ours, "kv_connector_extra_config": settings, **transfer}, start)


ALL = {"host_gb": 1, "disk_path": "/d/cache", "disk_gb": 2, "remote_url": "s3://b/p"}


def test_tiers_have_places_of_their_own_and_users_places_stay_alone():
    found = arranged(ALL)
    assert found.tiers == ("host", "disk", "remote")
    settings = found.transfer["kv_connector_extra_config"]
    assert settings == {
        "host_gb": 1,
        "disk_path": "/d/cache.verify-run",
        "disk_gb": 2,
        "remote_url": "s3://b/p/verify-run",
        "remote_admit": "all",
    }
    assert (found.disk, found.remote) == ("/d/cache.verify-run", "s3://b/p/verify-run")
    assert any("left there: remove it" in note for note in found.notes)
    assert arranged(ALL, EngineStart("run", scratch="/s")).disk == "/s/cache.verify-run"
    assert arranged({"remote_url": "mooncake://m:1"}).remote == "mooncake://m:1"


def test_a_tier_can_be_alone():
    disk = arranged(ALL, EngineStart("run", alone="disk"))
    assert disk.tiers == ("host", "disk")
    assert "remote_url" not in disk.transfer["kv_connector_extra_config"]
    remote = arranged(ALL, EngineStart("run", alone="remote"))
    assert remote.tiers == ("host", "remote")
    assert not {"disk_path", "disk_gb"} & set(remote.transfer["kv_connector_extra_config"])


def test_without_a_configuration_the_connector_is_used():
    found = arrange(None, EngineStart("run"))
    assert found.tiers == ("host",) and found.transfer["kv_connector"] == "HybridPagesConnector"


def test_what_would_empty_or_record_is_off():
    settings = {"follow_engine_resets": True, "trace_dir": "/t"}
    found = arranged(settings)
    changed = found.transfer["kv_connector_extra_config"]
    assert (changed["follow_engine_resets"], changed["trace_dir"]) == (False, "")
    assert len(found.notes) == 2 and settings["follow_engine_resets"]


def test_our_settings_are_found_beside_others():
    children = [
        {"kv_connector": "Other", "kv_role": "kv_both"},
        {"kv_connector": "HybridPagesConnector", "kv_connector_extra_config": ALL},
    ]
    extra = {"connectors": children}
    found = arranged(extra, kv_connector="MultiConnector", kv_connector_extra_config=extra)
    ours = found.transfer["kv_connector_extra_config"]["connectors"][1]
    assert ours["kv_connector_extra_config"]["disk_path"] == "/d/cache.verify-run"
    assert children[1]["kv_connector_extra_config"] == ALL


def test_a_disk_that_cannot_be_made_is_told(tmp_path):
    disk = str(tmp_path / "none" / "cache.verify-run")
    with pytest.raises(SettingsError, match=r"disk_path: .* found none: .*/none$"):
        list(main._folders({"disk": disk, "remote": ""}))


@pytest.mark.parametrize(
    ("transfer", "said"),
    [
        ({"kv_connector": "LMCacheConnectorV1"}, "found 'LMCacheConnectorV1'"),
        ({"kv_role": "kv_producer"}, "kv_role: expected 'kv_both', found 'kv_producer'"),
        (
            {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [1]}},
            "connectors: expected a list of configurations, found [1]",
        ),
    ],
)
def test_an_engine_that_restores_nothing_of_its_own_is_refused(transfer, said):
    with pytest.raises(SettingsError) as error:
        arranged({}, **transfer)
    assert said in str(error.value)


@pytest.mark.parametrize("plant", PLANTS)
def test_nobody_plants_a_fault_by_accident(monkeypatch, plant):
    monkeypatch.delenv(PLANT_VARIABLE, raising=False)
    with pytest.raises(SettingsError, match="only `hybrid-pages verify --plant` can set it"):
        Settings.parse({"plant": plant})
    monkeypatch.setenv(PLANT_VARIABLE, "another")
    with pytest.raises(SettingsError, match="leave it out"):
        Settings.parse({"plant": plant})
    monkeypatch.setenv(PLANT_VARIABLE, plant)
    assert Settings.parse({"plant": plant}).plant == plant
    assert Settings.parse({}).plant == ""


# ---- verdicts


def found(
    host: Answer | None = None,
    *,
    cold: Answer | None = None,
    local: Answer | None = None,
    again: Answer | None = None,
    figures: dict[str, float] | None = None,
    tokens: int = 3 * N,
    tiers: tuple[str, ...] = ("host",),
) -> Runs:
    """Runs of one prompt; what is not given is as it should be."""
    cold = cold or answer(-1.0, -2.0)
    local = local or answer(-1.0, -2.125, cached=2 * N, source="local")
    host = host or answer(-1.0, -2.125, cached=2 * N, source="host")
    facts = {"block_tokens": N, "longest": 4096, "tiers": tiers, "vllm": "0", "platform": "cpu"}
    counted = {"stored_entries:pages": 2, "stored_entries:checkpoints": 1, **(figures or {})}
    return Runs(
        [VerifyPrompt("a", (1,) * tokens, 2)],
        {**facts, "notes": ["a note"]},
        {
            COLD: [cold],
            COLD_AGAIN: [again or cold],
            LOCAL: [local],
            LOCAL_AGAIN: [local],
            "host": [host],
        },
        {"host": counted},
    )


def test_what_equals_the_local_hit_is_good():
    verdict = judge(found())
    assert verdict.good and [row.verdict for row in verdict.rows] == [EQUAL]
    assert (verdict.rows[0].against, verdict.noise.floor, verdict.noise.steps) == (LOCAL, 0, 0.125)


def test_one_bit_more_than_the_local_hit_is_not_where_the_engine_repeats_itself():
    verdict = judge(found(answer(-1.0, -2.1250001, cached=2 * N, source="host")))
    assert [row.verdict for row in verdict.rows] == [DIFFERS]
    assert "host: 1 of 1 answers differ" in verdict.problems[0]


@pytest.mark.parametrize(("off", "verdict"), [(0.19, WITHIN), (0.21, DIFFERS)])
def test_noise_is_twice_the_most_that_equal_runs_differ(off, verdict):
    runs = found(answer(-1.0, -2.125 - off, cached=2 * N, source="host"), again=answer(-1.0, -2.1))
    (row,) = judge(runs).rows
    assert row.verdict == verdict and row.limit == pytest.approx(0.2)


@pytest.mark.parametrize(("value", "verdict"), [(-2.2, WITHIN), (-2.3, DIFFERS)])
def test_another_depth_is_compared_with_the_cold_run_and_the_noise_of_other_steps(value, verdict):
    (row,) = judge(found(answer(-1.0, value, cached=N, source="host"))).rows
    assert (row.verdict, row.against, row.limit) == (verdict, COLD, 0.25)


def test_a_local_hit_that_was_partly_restored_is_no_reference():
    mixed = answer(-1.0, -2.125, cached=2 * N, source="host 32, local 32")
    assert judge(found(local=mixed)).rows[0].against == COLD


def test_noise_that_hides_faults_is_a_problem():
    verdict = judge(found(again=answer(-1.0, -3.5)))
    assert "use --concurrency 1" in verdict.problems[0]


def test_hits_of_vllms_own_that_are_far_from_cold_runs_are_a_problem():
    """What is restored equals such a hit, bit for bit, so that no row shows it."""
    hit = answer(-1.0, -3.5, cached=2 * N, source="local")
    verdict = judge(found(replace(hit, source="host"), local=hit))
    assert [row.verdict for row in verdict.rows] == [EQUAL]
    assert "differ by at most 1, found 1.5" in verdict.problems[0]
    assert judge(found()).good


def test_no_limit_is_above_1():
    far = answer(-1.0, -3.1, cached=N, source="host")
    local = answer(-1.0, -2.9, cached=2 * N, source="local")
    (row,) = judge(found(far, local=local)).rows
    assert (row.verdict, row.limit) == (DIFFERS, 1.0)
    near = answer(-1.0, -4.2, cached=2 * N, source="host")
    (row,) = judge(found(near, local=local, again=answer(-1.0, -2.9))).rows
    assert (row.verdict, row.limit) == (DIFFERS, 1.0)


def test_numbers_that_are_none_are_a_problem():
    broken = answer(math.nan, -1.0)
    runs = found(broken, cold=broken, local=broken)
    assert any("found NaN" in problem for problem in judge(runs).problems)


NONE = answer(-1.0, -2.0)


def half_answered(value: float, *, again: float = -2.0, said: int = 0) -> Runs:
    """Runs of which a rest, of one token, has this log-probability."""
    runs = found(again=answer(-1.0, again))
    runs.halves[0] = answer(-1.0, tokens=(said,))
    runs.rests["host"] = {0: answer(value, tokens=(1,), cached=3 * N, source="host")}
    return runs


@pytest.mark.parametrize(
    ("value", "again", "verdict"),
    [(-2.0, -2.0, EQUAL), (-2.2, -2.2, WITHIN), (-2.5, -2.0, DIFFERS)],
)
def test_the_rest_of_an_answer_is_compared_with_the_cold_run(value, again, verdict):
    rest = judge(half_answered(value, again=again)).rows[1]
    assert (rest.verdict, rest.against, rest.behind, rest.restored) == (verdict, COLD, 1, 3 * N)


def test_half_an_answer_that_is_another_is_no_reference():
    assert [row.behind for row in judge(half_answered(-7.0, said=5)).rows] == [0]


def test_a_rest_from_elsewhere_is_a_problem():
    runs = half_answered(-2.0)
    runs.rests["host"][0] = answer(-2.0, tokens=(1,), cached=3 * N, source="other")
    assert any("found them from other" in problem for problem in judge(runs).problems)


def test_prompts_below_a_block_are_verified_by_the_rests_of_their_answers():
    short = replace(half_answered(-2.0), answers={**found(NONE, tokens=N, local=NONE).answers})
    assert judge(short).good
    short.rests["host"][0] = NONE
    assert "nothing was restored" in judge(short).problems[0]
    unlike_vllm = half_answered(-2.0)
    unlike_vllm.answers["host"] = [NONE]
    assert "nothing was restored" in judge(unlike_vllm).problems[0]


def test_reports_name_the_rest_of_an_answer():
    data, text, terminal = shown(half_answered(-2.5))
    row = data["prompts"][0]["rest_of_answer"]["host"]
    assert (row["prompt_tokens"], row["restored_tokens"]) == (3 * N + 1, 3 * N)
    assert "host: 1 of 2 answers differ" in data["problems"][0]
    for printed in (text, terminal):
        assert "a, half answered" in printed and f"at token {3 * N + 1}" in printed


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        (found(NONE, tokens=N), "longer than a block of 32 tokens, and the longest has 32"),
        (found(NONE), "3 entries were stored"),
        (found(NONE, figures={"skipped_entries:no_room": 4}), "skipped_entries:no_room 4"),
        (found(NONE, local=NONE), "vLLM's own cache found nothing either"),
        (found(figures={"failures:load": 2}), "failures:load 2"),
        (found(figures={"disk_failures:checksum": 1}), "disk_failures:checksum 1"),
        (
            found(answer(-1.0, -2.125, cached=2 * N, source="other")),
            "expected hits from host alone, found them from other",
        ),
        (
            found(cold=answer(-1.0, -2.0, cached=N, source="other")),
            "cold runs: expected no hit, found 32 tokens from other",
        ),
    ],
)
def test_what_was_not_restored_is_a_problem_with_its_reason(runs, said):
    verdict = judge(runs)
    assert not verdict.good and any(said in problem for problem in verdict.problems)


def test_nothing_stored_is_told():
    runs = found(NONE)
    runs.figures["host"] = {}
    assert any("nothing was stored" in problem for problem in judge(runs).problems)


def test_a_length_that_no_prompt_can_exceed_is_told():
    runs = found(NONE, tokens=N)
    runs.facts["longest"] = N
    assert any("--max-model-len allows 32: raise it" in text for text in judge(runs).problems)


def test_a_tier_below_that_gives_nothing_is_a_problem():
    runs = found(tiers=("host", "disk"))
    runs.answers["disk"] = [NONE]
    runs.figures["disk"] = {"disk_failures:io": 3}
    verdict = judge(runs)
    assert [row.verdict for row in verdict.rows] == [EQUAL, NOTHING]
    assert any(
        text.startswith("disk: nothing was restored") and "disk_failures:io 3" in text
        for text in verdict.problems
    )


def test_plants_that_cannot_show_are_told():
    assert unfit_for(found(), "zero-state") is unfit_for(found(), "swap-pages") is None
    runs = found(figures={"stored_entries:checkpoints": 0})
    assert "recurrent layers" in unfit_for(runs, "zero-state")
    short = found(answer(-1.0, -2.0, cached=N, source="host"))
    assert "more than a restored page of 32 tokens" in unfit_for(short, "swap-pages")
    assert "nothing was restored that it could spoil" in unfit_for(found(NONE), "zero-state")


def test_a_bad_verdict_with_a_plant_is_the_faults_own():
    spoiled = found(answer(-1.0, -5.0, cached=2 * N, source="host"))
    main._require_told(spoiled, judge(spoiled), "zero-state")
    main._require_told(found(), judge(found()), "zero-state")
    failed = found(figures={"failures:load": 1})
    with pytest.raises(HybridPagesError, match=r"nothing can be told: .*failures:load 1"):
        main._require_told(failed, judge(failed), "zero-state")


def test_scores_count_right_answers_by_phase():
    runs = found(
        answer(-1.0, -2.125, cached=2 * N, source="host", text="#### 7"),
        cold=answer(-1.0, -2.0, text="#### 8"),
    )
    assert scores(runs) == {}
    runs.prompts[0] = VerifyPrompt("q", (1,) * 96, 2, ("Question:",), "7")
    assert scores(runs) == {COLD: 0, COLD_AGAIN: 0, LOCAL: 0, LOCAL_AGAIN: 0, "host": 1}


# ---- the runs


class Fake:
    """An engine whose answers depend on the prompt alone, and what it was told in which order."""

    def __init__(self, told: list[Any]) -> None:
        self.told, self.seen, self.local = told, set(), set()

    def ask(self, command: str, **given: Any) -> dict[str, Any]:
        """Answers as long as they may be, of tokens 7."""
        if command != "ask":
            self.told.append(command)
            self.local = set() if command == "reset" else self.local
            return {"stored_entries:pages": 1.0}
        salts = [each["salt"] for each in given["prompts"]]
        # What comes again is not stored, so that it resumes no deeper than vLLM's own hit.
        assert [each["stored"] for each in given["prompts"]] == [
            it not in self.seen for it in salts
        ]
        self.told.append(salts)
        source = "local" if salts[0] in self.local else "host" if salts[0] in self.seen else ""
        self.seen.update(salts)
        self.local.update(salts)
        cached = N if source else 0
        hits = {source: N * len(salts)} if source else {}
        answers = [
            {
                "tokens": [7] * each["answer_tokens"],
                "likely": [{"7": -1.0}] * each["answer_tokens"],
                "words": [],
                "text": "",
                "cached": cached,
            }
            for each in given["prompts"]
        ]
        self.prompts = [tuple(each["tokens"]) for each in given["prompts"]]
        return {"answers": answers, "hits": hits}


def test_every_prompt_runs_cold_twice_and_from_each_tier_alone():
    told: list[Any] = []
    starts = []

    @contextmanager
    def engines(start: EngineStart) -> Any:
        starts.append((start.run, start.alone))
        fake = Fake(told)
        if start.alone:
            fake.seen = {"r-first-0", "r-first-1", "r-half-0", "r-half-1"}
        yield fake, {"tiers": ["host", "disk"], "block_tokens": N, "longest": 99}

    made = [VerifyPrompt("a", (1,) * 40, 4), VerifyPrompt("b", (2,) * 40, 4)]
    runs = collect(
        engines, lambda engine, facts: made, EngineStart("r"), at_once=1, step=lambda *_: None
    )
    assert starts == [("r", ""), ("r", "disk")]
    one = [["r-first-0"]] * 2 + [["r-second-0"]] * 2 + ["reset", ["r-first-0"]]
    half = [["r-half-0"], "reset", ["r-half-0"]]
    two = [["r-first-1"]] * 2 + [["r-second-1"]] * 2 + ["reset", ["r-first-1"]]
    last = [["r-half-1"], "reset", ["r-half-1"]]
    disk = [["r-first-0"], ["r-half-0"], ["r-first-1"], ["r-half-1"]]
    assert told == [*one, *half, *two, *last, "settle", "figures", *disk, "figures"]
    assert [each.source for each in runs.phase(COLD)] == ["", ""]
    assert [each.source for each in runs.phase(LOCAL_AGAIN)] == ["local", "local"]
    assert [each.source for each in runs.phase("host")] == ["host", "host"]
    assert [half.tokens for half in runs.halves.values()] == [(7, 7), (7, 7)]
    for tier in ("host", "disk"):
        rests = runs.rests[tier]
        assert [(rest.tokens, rest.source) for rest in rests.values()] == [((7, 7), "host")] * 2


def test_a_prompt_goes_on_from_half_its_answer():
    sent: list[Any] = []

    class Noting(Fake):
        def ask(self, command: str, **given: Any) -> dict[str, Any]:
            if command == "ask":
                sent.extend((each["tokens"], each["answer_tokens"]) for each in given["prompts"])
            return super().ask(command, **given)

    @contextmanager
    def engines(start: EngineStart) -> Any:
        yield Noting([]), {"tiers": ["host"], "block_tokens": N, "longest": 99}

    made = [VerifyPrompt("a", (1, 2), 5), VerifyPrompt("ends", (3,), 5, ("stop",)), short_answer()]
    runs = collect(engines, lambda *_: made, EngineStart("r"), at_once=3, step=lambda *_: None)
    assert sent[-2:] == [((1, 2), 2), ((1, 2, 7, 7), 3)]
    assert list(runs.halves) == list(runs.rests["host"]) == [0]


def short_answer() -> VerifyPrompt:
    return VerifyPrompt("one token", (4,), 1)


def test_prompts_go_together_when_asked_to():
    told: list[Any] = []

    @contextmanager
    def engines(start: EngineStart) -> Any:
        yield Fake(told), {"tiers": ["host"], "block_tokens": N, "longest": 99}

    made = [VerifyPrompt("a", (1,) * 40, 4)] * 3
    collect(engines, lambda engine, facts: made, EngineStart("r"), at_once=2, step=lambda *_: None)
    assert [len(each) for each in told if isinstance(each, list)] == [2] * 7 + [1] * 7


def test_prompts_that_an_engine_dies_of_are_named():
    class Dead:
        def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
            raise EngineFailed("the engine's process ended with status -9", by_log=True)

    @contextmanager
    def engines(start: EngineStart) -> Any:
        yield Dead(), {"tiers": ["host"], "block_tokens": N, "longest": 99}

    made = [VerifyPrompt("line 1", (1,), 4), VerifyPrompt("line 2", (1,) * 40, 4)]
    with pytest.raises(EngineFailed) as error:
        collect(engines, lambda *_: made, EngineStart("r"), at_once=2, step=lambda *_: None)
    assert str(error.value).startswith("cold, line 1 (1 token), line 2 (40 tokens): the engine's")
    assert error.value.by_log


# ---- the report

ABOUT = {"model": "m|n", "flags": "--a b", "hybrid_pages": "0", "concurrency": 1, "plant": ""}


def shown(runs: Runs, **about: Any) -> tuple[dict[str, Any], str, str]:
    object_ = report(runs, judge(runs), {**ABOUT, **about})
    console = Console(width=160, record=True, file=None, quiet=False)
    with console.capture() as captured:
        show(object_, console)
    return json.loads(as_json(object_)), markdown(object_), captured.get()


def test_the_reports_tell_the_same():
    for runs, good in ((found(), True), (found(answer(-1.0, -5.0, cached=64)), False)):
        data, text, terminal = shown(runs)
        assert data["good"] is good
        for printed in (text, terminal):
            assert ("NOT VERIFIED" in printed) is not good
            assert "a note" in printed and "Noise" in printed
            assert ("First difference, host, a: at token 97" in printed) is not good
            assert ("local hit and restored both have" in " ".join(printed.split())) is not good
    assert data["prompts"][0]["tiers"]["host"]["first_difference"]["own"]["logprob"] == -2.125


def test_what_a_tier_has_lost_is_told_from_what_is_too_short():
    runs = found()
    for local in (0, 64):
        more = found(answer(-1.0, -2.0), local=answer(-1.0, -2.0, cached=local, source="local"))
        runs.prompts += more.prompts
        for phase, answers in more.answers.items():
            runs.phase(phase).extend(answers)
    _, text, _ = shown(runs)
    assert "Verified: 1 restored answers, equal, bit for bit (1 had nothing to restore; " in text
    assert "1 were not found, though vLLM's own cache had them)" in text


def test_json_has_no_numbers_that_parsers_refuse():
    nan = answer(math.nan, -1.0, cached=2 * N, source="host")
    data, text, _ = shown(found(nan))
    assert data["prompts"][0]["tiers"]["host"]["difference"] is None
    assert "unbounded" in text


def test_of_many_rows_those_that_are_not_equal_are_shown():
    one, bad = found(), found(answer(-1.0, -5.0, cached=64))
    for phase, answers in one.answers.items():
        answers[:] = answers * 49 + bad.answers[phase]
    one.prompts = [VerifyPrompt(f"p{index}", (1,) * 96, 2) for index in range(50)]
    data, text, terminal = shown(one)
    assert len(data["prompts"]) == 50
    for printed in (text, terminal):
        assert "p0" in printed and "p38" in printed and "p39 " not in printed
        assert "p49" in printed and "And 10 rows more that are equal" in printed


def test_a_planted_fault_that_does_not_show_is_told():
    _, text, terminal = shown(found(), plant="swap-pages")
    assert "DID NOT SHOW" in text and "DID NOT SHOW" in terminal
    _, text, _ = shown(found(answer(-1.0, -5.0, cached=64)), plant="swap-pages")
    assert "NOT VERIFIED: the planted fault swap-pages shows." in text


# ---- the engine's process


@pytest.mark.skipif(find_spec("vllm") is not None, reason="needs an environment without vLLM")
def test_an_engine_that_cannot_start_tells_why_and_is_gone(tmp_path):
    with (tmp_path / "log").open("w+b") as log:
        process = EngineProcess(log)
        with pytest.raises(EngineFailed, match="No module named 'vllm'"):
            process.arrange("m", [], EngineStart("r"))
        with pytest.raises(EngineFailed, match="expected `arrange` before `start`"):
            process.start()
        process.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_an_engine_that_dies_is_told_with_the_end_of_its_log(tmp_path):
    with (tmp_path / "log").open("w+b") as log:
        log.write(b"of another engine\n")
        log.flush()
        process = EngineProcess(log)
        os.write(log.fileno(), b"the last words\n")
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed) as error:
            process.start()
        process.kill()
    assert "ended with status -9" in str(error.value)
    assert "the last words" in str(error.value) and "another" not in str(error.value)


def test_a_log_stays_where_it_tells_more(tmp_path, monkeypatch):
    monkeypatch.setattr(main.tempfile, "tempdir", str(tmp_path))
    for error in (EngineFailed("a reason"), KeyboardInterrupt()):
        with pytest.raises(type(error)), main._log():
            raise error
        assert not list(tmp_path.iterdir())
    with pytest.raises(EngineFailed) as failed, main._log() as log:
        log.write(b"words")
        raise EngineFailed("the last lines", by_log=True)
    (left,) = tmp_path.iterdir()
    assert str(left) in str(failed.value) and left.read_bytes() == b"words"


# ---- the command


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ("--api-key K1 K2 --port 1", "--api-key '***' '***' --port 1"),
        ("--api_key=K1 --hf-token K2 --seed 3", "'--api_key=***' --hf-token '***' --seed 3"),
        ("--api-k K1 -tp 2 --api-server-count 2", "--api-k '***' -tp 2 --api-server-count 2"),
        ("--hf-overrides {} -- x", "--hf-overrides '{}' -- x"),
    ],
)
def test_reports_hold_no_keys(flags, shown):
    assert main.told(flags.split()) == shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["m", "--json", "-", "--markdown", "-"], "found two"),
        (["m", "--json", "/none/at/all.json"], "--json: expected a directory to write in"),
        (["m", "--json", "a", "--markdown", "a"], "found one for both: a"),
        (["m", "--markdown", "/"], "--markdown: expected a file that can be written"),
        (["m", "--scratch", "/none/at/all"], "--scratch: expected a directory"),
        (["m", "--prompts", "/none"], "/none: expected a text file"),
        (["m", "--questions", "/none"], "/none: expected a text file"),
        (["m", "--", "vllm", "serve", "m"], "leave the command and its model out"),
        (["m", "--plant", "fire"], "expected zero-state, swap-pages, found 'fire'"),
        (["m", "--tokens", "0"], "expected a whole number"),
        ([], "MODEL"),
        (["--", "--max-model-len", "8"], "expected MODEL before `--`"),
    ],
)
def test_what_cannot_run_ends_with_2_and_says_why(capsys, monkeypatch, words, said):
    monkeypatch.setattr("hybrid_pages.cli.info.engine_fits", lambda _: True)
    try:
        status = cli.main(["verify", *words])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert said in capsys.readouterr().err
