"""One engine in a process of its own, as ``vllm serve`` runs it, controlled by lines of JSON.

usage: python -m hybrid_pages.verify.engine ANSWERS

A command is a line on standard input; its answer is a line in the file descriptor ANSWERS. The
engine ends when standard input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.errors import EngineError, SettingsError
from hybrid_pages.scrape import PREFIX
from hybrid_pages.verify.tiers import Arranged, EngineStart, arrange
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.scheduler.requests.check import KEY

_LOGPROBS = 5
_COUNT_SECONDS, _RESET_SECONDS, _SETTLE_SECONDS, _END_SECONDS = 30.0, 60.0, 300.0, 60.0
# Kernels may not take a prompt of one token.
_SOME = [1] * 8
_QUEUES = ("disk_queue:written", "remote_queue:written")


class VerifyEngine:
    """An engine and its figures."""

    def __init__(self, engine: Any, logprobs: int) -> None:
        self._engine, self._logprobs = engine, logprobs
        self._asked = 0
        tokenizer = engine.tokenizer
        # For a folder without a tokenizer, transformers makes one that knows no word.
        knows = tokenizer is not None and tokenizer.encode("one word", add_special_tokens=False)
        self._tokenizer = tokenizer if knows else None

    @classmethod
    def start(cls, arguments: Any, arranged: Arranged) -> VerifyEngine:
        """Starts an engine with the user's arguments, and with places for the tiers of its own."""
        from vllm.config import KVTransferConfig
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments.kv_transfer_config = KVTransferConfig(**arranged.transfer)
        arguments.disable_log_stats = False
        most = arguments.max_logprobs
        # `vllm serve` gives this context, too: other uses have other defaults.
        engine = AsyncLLM.from_engine_args(arguments, usage_context=UsageContext.OPENAI_API_SERVER)
        return cls(engine, _LOGPROBS if most < 0 else min(_LOGPROBS, most))

    async def facts(self) -> dict[str, Any]:
        """Facts about the engine that the runs need, after it has run a first step."""
        config = self._engine.model_config
        await self._step()
        return {
            "block_tokens": int(figures().get("block_tokens", 0)),
            "vocab": config.get_vocab_size(),
            "longest": config.max_model_len,
            "has_tokenizer": self._tokenizer is not None,
            "vllm": versions.installed(),
            "platform": versions.platform(),
        }

    async def ask(self, prompts: list[Mapping[str, Any]]) -> dict[str, Any]:
        """Answers of prompts that are sent at once, and the tokens that they hit by source."""
        before = figures()
        answers = await asyncio.gather(*map(self._answer, prompts))
        wanted, until = before.get("lookups", 0) + len(prompts), time.monotonic() + _COUNT_SECONDS
        # A step's counts may arrive after its tokens.
        while (after := figures()).get("lookups", 0) < wanted:
            if time.monotonic() > until:
                raise EngineError(
                    f"metrics: expected {wanted:g} lookups, found {after.get('lookups', 0):g}: is "
                    "HybridPagesConnector the engine's connector?"
                )
            await asyncio.sleep(0.005)
        hits = {
            name.partition(":")[2]: count - before.get(name, 0)
            for name, count in after.items()
            if name.startswith("hit_tokens:")
        }
        return {"answers": answers, "hits": hits}

    async def _step(self) -> None:
        """Runs a request that is useful only for the figures that its steps bring."""
        await self.ask(
            [{"tokens": _SOME, "salt": "step", "answer_tokens": 1, "stop": [], "stored": True}]
        )

    async def _answer(self, prompt: Mapping[str, Any]) -> dict[str, Any]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        reads = self._tokenizer is not None
        self._asked += 1
        stream = self._engine.generate(
            TokensPrompt(prompt_token_ids=prompt["tokens"], cache_salt=prompt["salt"]),
            SamplingParams(
                temperature=0,
                max_tokens=prompt["answer_tokens"],
                ignore_eos=not prompt["stop"],
                stop=prompt["stop"] or None,
                detokenize=reads,
                logprobs=self._logprobs,
                extra_args={"kv_transfer_params": {KEY: {"store": prompt["stored"]}}},
            ),
            f"verify-{self._asked}",
            # Each engine core of data parallelism has a cache of its own.
            data_parallel_rank=0,
        )
        async for output in stream:
            last = output
        answer = last.outputs[0]
        return {
            "tokens": list(answer.token_ids),
            "likely": [
                {token: entry.logprob for token, entry in at.items()} for at in answer.logprobs
            ],
            "words": [
                at[token].decoded_token or ""
                for token, at in zip(answer.token_ids, answer.logprobs, strict=True)
            ]
            if reads
            else [],
            "text": answer.text if reads else "",
            "cached": last.num_cached_tokens or 0,
        }

    async def encode(self, texts: list[str]) -> dict[str, Any]:
        """Tokens of texts."""
        if self._tokenizer is None:
            raise SettingsError(
                'a text: expected a model with a tokenizer, found none: give "prompt_token_ids"'
            )
        return {"tokens": [list(map(int, self._tokenizer.encode(text))) for text in texts]}

    async def reset(self) -> dict[str, Any]:
        """Empties vLLM's own prefix cache, once nothing uses it any more."""
        until = time.monotonic() + _RESET_SECONDS
        while not await self._engine.reset_prefix_cache():
            if time.monotonic() > until:
                raise EngineError(
                    f"reset_prefix_cache: expected vLLM to do it within {_RESET_SECONDS:g} s, "
                    "found blocks in use"
                )
            await asyncio.sleep(0.05)
        return {}

    async def settle(self) -> dict[str, Any]:
        """Waits until what is on its way to tiers below has arrived."""
        until, done = time.monotonic() + _SETTLE_SECONDS, 0
        while done < 2:
            # Figures come with the steps of a request.
            await self._step()
            found = figures()
            left = {name: found[name] for name in _QUEUES if found.get(name)}
            done = 0 if left else done + 1
            if time.monotonic() > until:
                raise EngineError(
                    f"expected an end of the writes below the host memory within "
                    f"{_SETTLE_SECONDS:g} s, found {left} copies under way: is the disk or the "
                    "store that slow?"
                )
            await asyncio.sleep(0.1)
        return {}

    async def figures(self) -> dict[str, Any]:
        """All metrics since the start."""
        return figures()

    def end(self) -> None:
        """Ends the engine and its processes."""
        self._engine.shutdown(timeout=_END_SECONDS)


def figures() -> dict[str, float]:
    """The connector's metrics, by name and label, all engine cores together."""
    from vllm.v1.metrics.reader import get_metrics_snapshot

    found: dict[str, float] = {}
    for metric in get_metrics_snapshot():
        value = getattr(metric, "value", None)
        if not metric.name.startswith(PREFIX) or value is None:
            continue
        labels = [
            text for name, text in metric.labels.items() if name not in ("model_name", "engine")
        ]
        key = ":".join([metric.name.removeprefix(PREFIX), *labels])
        found[key] = (
            max(found.get(key, 0), value) if key == "block_tokens" else (found.get(key, 0) + value)
        )
    return found


def _plain(transfer: Any) -> dict[str, Any] | None:
    """The fields of vLLM's transfer configuration that the user gave."""
    if transfer is None or isinstance(transfer, dict):
        return transfer
    found = asdict(transfer) if is_dataclass(transfer) else dict(transfer)  # type: ignore[arg-type]
    return {name: value for name, value in found.items() if value is not None}


def _arrange(
    model: str, flags: list[str], start: Mapping[str, str]
) -> tuple[dict[str, Any], Any, Arranged]:
    """Facts that the parent process needs before the engine starts, and the engine's arguments.

    Raises:
        SettingsError: flags that vLLM does not take or that verify can't use.
    """
    arguments = versions.serve_arguments(model, flags)
    size = arguments.kv_offloading_size
    if size is not None:
        raise SettingsError(
            f"--kv-offloading-size: expected none, found {size:g}: with it vLLM takes a connector "
            "of its own instead of HybridPagesConnector: drop the flag"
        )
    arranged = arrange(_plain(arguments.kv_transfer_config), EngineStart(**start))
    told = {
        "tiers": arranged.tiers,
        "disk": arranged.disk,
        "remote": arranged.remote,
        "notes": arranged.notes,
    }
    return told, arguments, arranged


async def _serve(answers: int) -> None:
    engine: VerifyEngine | None = None
    given: list[Any] = []
    with os.fdopen(answers, "w") as out:
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            name = command.pop("command")
            try:
                if name == "arrange":
                    found, *given = _arrange(**command)
                elif name == "start" and given:
                    engine = VerifyEngine.start(*given)
                    found = await engine.facts()
                elif engine is None:
                    first = "start" if given else "arrange"
                    raise EngineError(f"expected `{first}` before `{name}`")
                else:
                    found = await getattr(engine, name)(**command)
            except Exception as error:
                known = isinstance(error, HybridPagesError)
                if not known:
                    traceback.print_exc()  # with what has caused it, for its log
                text = str(error) if known else f"{type(error).__name__}: {error}"
                found = {"error": text, "known": known}
            out.write(json.dumps(found) + "\n")
            out.flush()
    if engine is not None:
        engine.end()


if __name__ == "__main__":
    # `vllm serve` sets this, too.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    asyncio.run(_serve(int(sys.argv[1])))
