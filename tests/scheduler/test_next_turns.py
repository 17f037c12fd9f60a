"""The next turn of a conversation goes on from the end of its last answer, whatever its requests
are: every kind that vLLM knows, and every way in which an answer ends."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from vllm.lora.request import LoRARequest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output.request import StructuredOutputRequest

from simulation.engine import Engine, Result, StartEngine, origin_of
from simulation.function import Image, continuation
from simulation.router import Router
from simulation.runner import Runner
from simulation.shapes import BLOCK_TOKENS as N
from simulation.workload import Mix, Workload
from test_boundaries import tokens
from test_checkpoints import LARGE, counters
from test_resets import session
from test_tails import BACKGROUND, tails

MODES = pytest.mark.parametrize("extra", [LARGE, BACKGROUND], ids=["step", "background"])
ASYNCHRONOUS = pytest.mark.parametrize("asynchronous", [False, True])
IDENTITIES: dict[str, dict[str, Any]] = {
    "plain": {},
    "a salt": {"salt": "a"},
    "another salt": {"salt": "b"},
    "a LoRA": {"lora": LoRARequest("a", 1, "/a")},
    "another LoRA": {"lora": LoRARequest("b", 2, "/b")},
    "an image": {"images": [Image("one", N + 2, 4)]},
    "another image": {"images": [Image("two", N + 2, 4)]},
    "an image over a boundary": {"images": [Image("three", N - 3, 6)]},
    "an image at the end": {"images": [Image("four", N + 5, 9)]},
}


@MODES
@ASYNCHRONOUS
@pytest.mark.parametrize("runner", [1, 2])
def test_each_kind_of_request_goes_on_from_its_own_answer(
    start: StartEngine, asynchronous: bool, extra: Any, runner: int
) -> None:
    engine = start(async_scheduling=asynchronous, extra=extra, runner_version=runner)
    said, prompt = dict[str, list[int]](), tokens(N + 14)
    for kind, more in IDENTITIES.items():
        engine.forget_local()
        result = engine.generate(prompt, 3, **more)
        # All that two of them may share is the block before their images.
        assert result.restored_tokens in ((0, N) if more.get("images") else (0,)), kind
        said[kind] = list(result.request.all_token_ids)
    for kind, more in IDENTITIES.items():
        engine.forget_local()
        following = engine.generate([*said[kind], *tokens(5, 8)], 3, **more)
        assert following.restored_tokens == len(prompt) + 2, kind
    engine.check_idle()


def answer(engine: Engine, request: Request) -> Result:
    """Runs a request that :meth:`Engine.generate` cannot make."""
    result = Result(request, origin_of(request, {}))
    engine.results[request.request_id] = result
    engine._origins[request.request_id] = result.origin
    engine._submit(request)
    engine.run()
    result.check()
    return result


class Grammar:
    """Takes every token."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


@MODES
@ASYNCHRONOUS
def test_a_structured_answer(start: StartEngine, asynchronous: bool, extra: Any) -> None:
    engine = start(async_scheduling=asynchronous, extra=extra)
    request = engine._request(tokens(20), 5)
    grammar = StructuredOutputRequest(StructuredOutputsParams(regex="x"))
    grammar.grammar = Grammar()
    request.structured_output_request = grammar
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    answer(engine, request)
    engine.forget_local()
    assert engine.generate([*request.all_token_ids, 3], 2).restored_tokens == 24
    engine.check_idle()


def test_a_request_that_asks_for_the_logprobs_of_its_prompt(start: StartEngine) -> None:
    """vLLM lets it read no cache."""
    engine = start(extra=LARGE)
    prompt = tokens(20)
    engine.generate(prompt, 3)
    request = engine._request([*prompt, 1, 2], 4)
    request.sampling_params.prompt_logprobs = 1
    request.skip_reading_prefix_cache = True
    assert answer(engine, request).restored_tokens == 0
    engine.forget_local()
    assert engine.generate([*request.all_token_ids, 3], 2).restored_tokens == 25
    engine.check_idle()


def test_several_answers_to_one_prompt(start: StartEngine) -> None:
    engine = start(extra=LARGE)
    said = engine.generate(tokens(20), 4).request.all_token_ids
    engine.forget_local()
    results = [engine.add([*said, 1, 2], 3 + seed) for seed in range(4)]
    engine.run()
    assert [result.restored_tokens for result in results] == [23] * 4
    engine.check_idle()


@ASYNCHRONOUS
def test_an_answer_that_a_stop_string_has_ended(ready: StartEngine, asynchronous: bool) -> None:
    """Only the client knows such strings. It aborts the request when it has seen one, and the next
    prompt has the answer without it: the state of the last token that both have is that of the
    prompt's end."""
    engine = ready(async_scheduling=asynchronous, extra=LARGE)
    result = engine.add(tokens(20), 30)
    while len(result.tokens) < 6:
        engine.step()
    said = [*tokens(20), *result.tokens[:4]]
    engine.abort(result)
    engine.run()
    engine.forget_local()
    assert engine.generate([*said, *tokens(5, 1)], 2).restored_tokens == 20
    engine.check_idle()


def test_an_answer_of_a_session_that_streams_its_input(
    ready: StartEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add = Runner._add

    def add_again(runner: Runner, new: Any) -> None:
        runner.requests.pop(new.req_id, None)
        add(runner, new)

    monkeypatch.setattr(Runner, "_add", add_again)
    engine = ready(async_scheduling=False, extra=LARGE)
    prompt = tokens(N + 3)
    origin = origin_of(engine._request(prompt), {})
    stop = continuation(origin, prompt, 7)[-1]
    request = session(engine, prompt, stop)
    result = engine.results["session"] = Result(request, origin, aborted=True)
    engine._origins["session"] = origin
    engine._submit(request)
    while request.status != RequestStatus.WAITING_FOR_STREAMING_REQ:
        engine.step()
    engine._submit(session(engine, tokens(9, 99), stop))
    for _ in range(8):
        engine.step()
    engine.scheduler.finish_requests("session", RequestStatus.FINISHED_ABORTED)
    engine.run()
    result.tokens = []
    engine.check_idle()
    assert tails(engine, result) == [N + 3, request.num_tokens - 1]


def test_a_longest_answer(start: StartEngine) -> None:
    engine = start(blocks=200, extra=LARGE)
    result = engine.add(tokens(340), 100)
    engine.run()
    assert tails(engine, result) == [340, engine.scheduler.max_model_len - 1]
    result.aborted = True  # by vLLM: it wanted more
    engine.check_idle()


@pytest.mark.parametrize("seed", range(2))
def test_where_priorities_and_few_blocks_preempt(start: StartEngine, seed: int) -> None:
    rng = random.Random(seed)
    extra, asynchronous = ((LARGE, True), (BACKGROUND, False))[seed]
    options = {"blocks": 40, "batched_tokens": 40, "priorities": True}
    engine = start(extra=extra, async_scheduling=asynchronous, **options)
    engine.watches_local_cache = True
    Workload(rng, Mix(abort=0.03, forget=0.3, turns=0.9, priorities=3, arrival=0.5)).run(engine, 40)
    found = counters(engine)
    assert found["tail_tokens"] and not any(key.startswith("failures") for key in found)


def test_events_tell_of_whole_blocks_alone(start: StartEngine, tmp_path: Path) -> None:
    router = Router(tmp_path)
    engine = start(events=router.config, extra={"host_gb": 0.0004})
    workload = Workload(random.Random(1), Mix(abort=0.03, forget=0.3, turns=0.9))
    for _ in range(2):
        workload.run(engine, 30)
        router.hear(engine)
        router.check()
    router.close()
    found = counters(engine)
    assert found["tail_tokens"] and not any(key.startswith("failures") for key in found)


@pytest.mark.usefixtures("seconds_apart")
def test_a_flood_of_one_tenant_does_not_push_the_end_of_another_s_answer_out(
    start: StartEngine,
) -> None:
    restored = []
    for share in (0.5, 1.0):
        engine = start(extra={"host_gb": 0.00012, "tenant_share": share})
        said = engine.generate(tokens(20), 4, salt="a").request.all_token_ids
        for seed in range(40):
            engine.generate(tokens(20, seed + 5), 3, salt="b")
        engine.forget_local()
        restored.append(engine.generate([*said, 1, 2], 2, salt="a").restored_tokens)
        engine.check_idle()
    assert restored == [23, 0]
