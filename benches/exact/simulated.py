"""A workload through vLLM's real scheduler, over workers that compute nothing.

A process for each cache: a JSON object a line of standard input says what to run, and one a line of
standard output what each request had to compute. The connector's workers copy at once, in order.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import vllm_environment  # noqa: F401 - before vLLM

# isort: split
import torch
import vllm
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum as Kind
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

import simulation.config
import simulation.engine
from hybrid_pages.vllm.worker import copy_engine
from simulation.copies import Copies, Script
from simulation.engine import Engine, Result, connector
from simulation.runner import Runner, Step
from simulation.shapes import Shape, attention, recurrent

LAYER_TOKEN_BYTES = 128
"""Of each of the two attention layers, so that a block is whole pages of the machine."""
UNIT_TOKEN_BYTES = 2 * LAYER_TOKEN_BYTES
"""A block of vLLM's pool for each of its tokens."""
STEP_TOKENS = 8192
SETTLING_STEPS = 3
"""Between an answer and the next request of its session: a client needs longer than that."""
PAST_THE_END = 4


class Answering(Runner):
    """Computes nothing, and gives each request the answer of the workload."""

    answers: ClassVar[dict[str, Sequence[int]]] = {}

    def _prepare_blocks(self, output: Any) -> None:
        """No byte is looked at."""

    def _forward(self, output: Any) -> list[Step]:
        steps = []
        for name, count in output.num_scheduled_tokens.items():
            request = self.requests[name]
            step = Step(request, count, [])
            if step.end == len(request.prefix):
                answer, place = self.answers[name], step.end - request.prompt_tokens
                step.sampled.append(answer[place] if place < len(answer) else PAST_THE_END)
                request.prefix.append(step.sampled[-1])
            request.computed = step.end
            steps.append(step)
        return steps


class Unchecked(Engine):
    """An engine whose bytes nobody compares; it counts what each request computes."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.computed: dict[str, int] = defaultdict(int)
        self.preempted = 0
        schedule = self.scheduler.schedule

        def counted(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self.preempted += len(output.preempted_req_ids or ())
            for name, count in output.num_scheduled_tokens.items():
                request = self.scheduler.requests[name]
                end, prompt = request.num_computed_tokens, request.num_prompt_tokens
                self.computed[name] += max(0, min(end, prompt) - (end - count))
            return output

        self.scheduler.schedule = counted

    def _connect(self) -> None:
        super()._connect()
        # What notes the blocks of loads is for those who compare bytes.
        del self.connector.update_state_after_alloc, self.connector.get_num_new_matched_tokens

    def _accept_loads(self, runner: Any, more: Sequence[tuple[int, int]] = ()) -> None:
        """Loads may write where they like."""

    def ask(self, prompt: Sequence[int], answer: Sequence[int], stop: int | None) -> Result:
        """Queues a request; an answer that ends in `stop` surprises the scheduler."""
        request = self._request(prompt, len(answer) + (0 if stop is None else 8))
        if stop is not None:
            request.sampling_params.stop_token_ids = [stop]
        origin = simulation.engine.origin_of(request, self.versions)
        Answering.answers[request.request_id] = answer
        self._origins[request.request_id] = origin
        self.results[request.request_id] = Result(request, origin)
        self._submit(request)
        return self.results[request.request_id]


def model(block_tokens: int) -> Shape:
    """Layers in the proportions of Qwen3.6's: a state takes as much room as three pages."""

    class Sized(Shape):
        pass

    Sized.block_tokens = block_tokens
    page = block_tokens * LAYER_TOKEN_BYTES
    convolution = 3 * 128 * 2

    def pages() -> FullAttentionSpec:
        return replace(attention(), block_size=block_tokens, head_size=LAYER_TOKEN_BYTES // 8)

    def states() -> MambaSpec:
        rest = ((page - convolution) // 4,)
        made = recurrent(
            Kind.GDN_ATTN, ((3, 128), torch.bfloat16), (rest, torch.float32), page_bytes=page
        )
        return replace(made, block_size=block_tokens)

    return Sized("model", (states, states, states, pages) * 2)


def transfer(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The connector's settings, with so much host memory."""
    memory_bytes = given["memory"] * UNIT_TOKEN_BYTES * given["block"]
    if given["connector"] == "ours":
        return connector(host_gb=memory_bytes / (1 << 30), **given["settings"])
    if given["connector"] == "offloading":
        extra = {
            "spec_name": "InstantOffloadingSpec",
            "spec_module_path": "rivals.instant_spec",
            "cpu_bytes_to_use": memory_bytes,
        }
        return {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
    return None


def play(engine: Unchecked, requests: Sequence[Mapping[str, Any]], abreast: int) -> list[Result]:
    """Runs all requests in order, so many at a time, those of a session one after the other."""
    running: dict[int, Result] = {}
    ended: dict[int, int] = {}
    results = []

    def ready(session: int) -> bool:
        for other in [session_ for session_, result in running.items() if result.done]:
            del running[other]
            ended[other] = engine.steps
        settled = engine.steps >= ended.get(session, -SETTLING_STEPS) + SETTLING_STEPS
        return len(running) < abreast and session not in running and settled

    for asked in requests:
        while not ready(asked["session"]) and engine.step():
            pass
        stop = asked["answer"][-1] if len(asked["answer"]) > 1 else None
        result = engine.ask(asked["prompt"], asked["answer"], stop)
        running[asked["session"]] = result
        results.append(result)
        if asked["alone"]:
            engine.run(limit=100_000)
    engine.run(limit=1_000_000)
    return results


def rows(engine: Unchecked, results: Sequence[Result]) -> Iterator[dict[str, Any]]:
    for result in results:
        yield {
            "computed": engine.computed[result.request.request_id],
            "local": result.local_tokens,
            "restored": result.restored_tokens,
        }


def run(given: Mapping[str, Any]) -> dict[str, Any]:
    """One workload through a new engine."""
    requests = [json.loads(line) for line in Path(given["requests"]).read_text().splitlines()]
    longest = max(len(asked["prompt"]) + len(asked["answer"]) for asked in requests) + 16
    simulation.config.MAX_MODEL_LEN = longest
    simulation.config._base.cache_clear()
    # Room for those that run at a time: their pages, and states that are read and written.
    working = 1 + given["abreast"] * (-(-longest // given["block"]) + 3 * 3)
    more = given["memory"] if given["more_blocks"] else 0
    started = time.process_time()
    engine = Unchecked(
        model(given["block"]),
        transfer=transfer(given),
        blocks=working + more,
        batched_tokens=STEP_TOKENS,
        match_unit=given["unit"],
        async_scheduling=given["asynchronous"],
        requests=given["abreast"],
    )
    results = play(engine, requests, given["abreast"])
    found = {
        "vllm": vllm.__version__,
        "steps": engine.steps,
        "seconds": time.process_time() - started,
        "preempted": engine.preempted,
        "blocks": engine.plan.num_blocks,
        "rows": list(rows(engine, results)),
    }
    if given["connector"] == "ours":
        found["counters"] = engine.half.stats()["counters"]
        stats = engine.cache.stats()
        found["cache"] = {name: of for name, of in stats.items() if isinstance(of, int)}
    engine.close()
    return found


def main() -> None:
    """Runs what it is told until the other end closes."""
    simulation.engine.Runner = Answering
    copy_engine.HostEngine = partial(Copies, Script())
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
