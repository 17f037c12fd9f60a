"""One real vLLM engine, driven over pipes: a JSON command a line, a JSON answer a line.

The engine runs in this process (no engine-core process), so that the scheduler and its connector
can be timed from outside: their methods are wrapped, vLLM's files are untouched.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import wraps
from typing import Any, TextIO

# Connector methods that hold or pass on plain values: timing them would measure the stopwatch.
UNTIMED = {"bind_kv_cache_manager", "bind_gpu_block_pool", "shutdown"}
IDLE_SLEEP_S = 0.001
SETTLE_LIMIT_S = 30.0


@dataclass
class Step:
    """One scheduler step: seconds in schedule + update_from_output; of these, in the connector."""

    tokens: int
    scheduler_s: float = 0.0
    connector_s: float = 0.0


class Probe:
    """Times the two halves of a scheduler's step, and each call of the scheduler's connector."""

    def __init__(self, scheduler: Any) -> None:
        self.steps: list[Step] = []
        self.connector_s = 0.0
        self.calls: dict[str, float] = {}
        self.worker_calls: dict[str, float] = {}
        """Calls of the model runner into the worker's connector."""
        self.external: dict[str, int] = {}
        self.chunks: dict[str, list[tuple[int, int]]] = {}
        self._depth = 0
        scheduler.schedule = self._timed_schedule(scheduler.schedule)
        scheduler.update_from_output = self._timed_update(scheduler.update_from_output)
        if scheduler.connector is not None:
            self._wrap_connector(scheduler.connector)

    def watch_worker(self) -> None:
        """Times the worker half of this process, too, if there is a connector."""
        from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

        if has_kv_transfer_group():
            connector = get_kv_transfer_group()
            for name in _methods(connector):
                setattr(connector, name, self._timed_worker_call(name, getattr(connector, name)))

    def reset(self) -> None:
        self.steps, self.connector_s = [], 0.0
        self.calls, self.worker_calls, self.external, self.chunks = {}, {}, {}, {}

    def _timed_schedule(self, schedule: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(schedule)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before, started = self.connector_s, time.perf_counter()
            output = schedule(*args, **kwargs)
            seconds = time.perf_counter() - started
            tokens = output.total_num_scheduled_tokens
            self.steps.append(Step(tokens, seconds, self.connector_s - before))
            for request, count in output.num_scheduled_tokens.items():
                self.chunks.setdefault(request, []).append((count, tokens))
            return output

        return timed

    def _timed_update(self, update: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(update)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before, started = self.connector_s, time.perf_counter()
            output = update(*args, **kwargs)
            self.steps[-1].scheduler_s += time.perf_counter() - started
            self.steps[-1].connector_s += self.connector_s - before
            return output

        return timed

    def _wrap_connector(self, connector: Any) -> None:
        for name in _methods(connector):
            setattr(connector, name, self._timed_call(name, getattr(connector, name)))

    def _timed_worker_call(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - started
                self.worker_calls[name] = self.worker_calls.get(name, 0.0) + seconds

        return timed

    def _timed_call(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._depth:
                return call(*args, **kwargs)
            self._depth += 1
            started = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - started
                self._depth -= 1
                self.connector_s += seconds
                self.calls[name] = self.calls.get(name, 0.0) + seconds
                if name == "update_state_after_alloc":
                    request, _, tokens = args
                    prompt = request.request_id
                    self.external[prompt] = self.external.get(prompt, 0) + tokens

        return timed


def _methods(connector: Any) -> list[str]:
    found = inspect.getmembers(type(connector), inspect.isfunction)
    return [name for name, _ in found if not name.startswith("_") and name not in UNTIMED]


@dataclass
class Answer:
    """Result of one prompt."""

    ttft_s: float
    tokens: list[int]
    logprobs: list[float]
    cached_tokens: int
    external_tokens: int
    chunks: list[tuple[int, int]]
    """The prompt's tokens in each of its steps, and all tokens of that step."""


class Engine:
    """A vLLM engine, stepped by hand."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from vllm import LLM

        self._llm = LLM(**settings)
        self._engine = self._llm.llm_engine
        core = self._engine.engine_core.engine_core
        self._scheduler = core.scheduler
        self._probe = Probe(core.scheduler)
        self._probe.watch_worker()
        self._requests = 0

    def describe(self) -> dict[str, Any]:
        import vllm

        groups = self._scheduler.kv_cache_config.kv_cache_groups
        return {
            "vllm": vllm.__version__,
            "block_tokens": max(g.kv_cache_spec.block_size for g in groups),
            "groups": [f"{type(g.kv_cache_spec).__name__} x{len(g.layer_names)}" for g in groups],
            "vocab": self._llm.model_config.get_vocab_size(),
        }

    def reset_local(self) -> dict[str, Any]:
        """Empties vLLM's own prefix cache; what a connector keeps stays."""
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache: blocks are still in use")
        return {}

    def counters(self) -> dict[str, float]:
        """Counters of hybrid-pages since the start; empty for another connector."""
        half = getattr(self._scheduler.connector, "scheduler", None)
        return half.stats()["counters"] if hasattr(half, "stats") else {}

    def ready(self) -> dict[str, Any]:
        """Waits until the remote store answers. Its client starts with the first step."""
        self.run([[3] * 8], 1)
        remote = self._scheduler.connector.scheduler.connection.remote
        limit = time.monotonic() + SETTLE_LIMIT_S
        while remote.stats()["out"]:
            if time.monotonic() > limit:
                raise RuntimeError(f"the remote store does not answer: {remote.notes()}")
            time.sleep(IDLE_SLEEP_S)
        return {}

    def end(self) -> dict[str, Any]:
        """Finishes what is on its way to tiers below and ends the engine in order."""
        self._settle()
        self._engine.engine_core.shutdown()
        return {}

    def run(self, prompts: list[list[int]], decode: int, stored: bool = True) -> dict[str, Any]:
        """Runs prompts sent at once to their ends, and then until nothing is in flight. stored:
        whether hybrid-pages keeps anything of them."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        params = SamplingParams(
            temperature=0, max_tokens=decode, ignore_eos=True, detokenize=False, logprobs=0
        )
        if not stored:
            params.extra_args = {"kv_transfer_params": {"hybrid_pages": {"store": False}}}
        self._probe.reset()
        ids = [self._next_id() for _ in prompts]
        first: dict[str, float] = {}
        finished: dict[str, Any] = {}
        started = time.perf_counter()
        for request_id, prompt in zip(ids, prompts, strict=True):
            prompt_tokens = TokensPrompt(prompt_token_ids=prompt)
            self._engine.add_request(request_id, prompt_tokens, params)
        while self._engine.has_unfinished_requests():
            for output in self._step():
                if output.outputs[0].token_ids:
                    first.setdefault(output.request_id, time.perf_counter() - started)
                if output.finished:
                    finished[output.request_id] = output
        ended = time.perf_counter()
        self._settle()
        answers = [self._answer(i, first, finished) for i in ids]
        return {
            "answers": [asdict(answer) for answer in answers],
            "steps": [asdict(step) for step in self._probe.steps],
            "connector_s": self._probe.connector_s,
            "calls": self._probe.calls,
            "worker_calls": self._probe.worker_calls,
            "run_s": ended - started,
        }

    def _next_id(self) -> str:
        self._requests += 1
        return f"bench-{self._requests}"

    def _step(self) -> list[Any]:
        before = len(self._probe.steps)
        outputs = self._engine.step()
        # As vLLM's own engine loop does after a step without tokens: copying threads need it.
        if not any(step.tokens for step in self._probe.steps[before:]):
            time.sleep(IDLE_SLEEP_S)
        return outputs

    def _settle(self) -> None:
        deadline = time.perf_counter() + SETTLE_LIMIT_S
        while self._scheduler.has_requests():
            if time.perf_counter() > deadline:
                raise TimeoutError(
                    f"the engine still had work {SETTLE_LIMIT_S:.0f} s after its last request ended"
                )
            self._step()

    def _answer(
        self, request_id: str, first: Mapping[str, float], finished: Mapping[str, Any]
    ) -> Answer:
        output = finished[request_id]
        completion = output.outputs[0]
        # Inside the engine vLLM appends a suffix of its own to a request's id.
        inside = next(i for i in self._probe.chunks if f"{i}-".startswith(f"{request_id}-"))
        return Answer(
            ttft_s=first[request_id],
            tokens=list(completion.token_ids),
            logprobs=[next(iter(entry.values())).logprob for entry in completion.logprobs],
            cached_tokens=output.num_cached_tokens or 0,
            external_tokens=self._probe.external.get(inside, 0),
            chunks=self._probe.chunks[inside],
        )


def serve(commands: TextIO, answers: TextIO) -> None:
    """Answers commands until the other end closes."""
    engine: Engine | None = None
    for line in commands:
        command = json.loads(line)
        name = command.pop("command")
        if name == "start":
            engine = Engine(command["settings"])
            answer = engine.describe()
        elif engine is None:
            raise ValueError(f"expected 'start' first, found {name!r}")
        elif name == "reset_local":
            answer = engine.reset_local()
        elif name == "run":
            answer = engine.run(**command)
        elif name == "ready":
            answer = engine.ready()
        elif name == "counters":
            answer = engine.counters()
        elif name == "end":
            answer = engine.end()
        else:
            raise ValueError(
                f"expected start, reset_local, run, ready, counters or end, found {name!r}"
            )
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    # File descriptors of the two pipes; stdout and stderr belong to vLLM's log.
    with os.fdopen(int(sys.argv[1])) as commands, os.fdopen(int(sys.argv[2]), "w") as answers:
        serve(commands, answers)
