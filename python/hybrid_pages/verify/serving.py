"""An engine that serves, as verify uses it: prompts under salts of their own, by HTTP."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hybrid_pages.scrape import Samples, ScrapeError, scrape
from hybrid_pages.served import RefusedError, ServedModel, ServedModelError
from hybrid_pages.verify.answers import Answer
from hybrid_pages.vllm.scheduler.requests.check import KEY, NAME

_LOGPROBS = (5, 1, 0)
_TOKEN = "token_id:"
_RETAIN_SECONDS = 300
"""How long what a run stores is kept from eviction, should the run not end in order."""
_END_SECONDS = 10.0
"""How long a run may go on after its time, to drop what it has stored."""
_RANK = "X-data-parallel-rank"


class CheckTimeout(ServedModelError):
    """A run has taken longer than it may."""


class BusyError(ServedModelError):
    """The engine has other work, so that nothing was compared."""


@dataclass
class RunCosts:
    """What a run has cost the engine, and how long it may take.

    base: the server's address. limit: how many seconds all requests together may take.
    """

    base: str
    limit: float
    requests: int = 0
    prompt_tokens: int = 0
    computed_tokens: int = 0
    answer_tokens: int = 0
    host_bytes: int = 0
    """The host memory that the prompts took at a time, about."""
    began: float = field(default_factory=lambda: time.monotonic())

    def left(self, more: float = 0.0) -> float:
        """How many seconds are left for requests, with some more.

        Raises:
            CheckTimeout: none.
        """
        left = self.limit + more - (time.monotonic() - self.began)
        if left <= 0:
            raise CheckTimeout(
                f"{self.base}: expected all answers within {self.limit:g} s (--timeout), found "
                f"{self.requests} by then: the engine is too busy, or give more time"
            )
        return left


@dataclass(frozen=True)
class CheckedAnswer:
    """An answer, and what the engine says of its request."""

    answer: Answer
    told: Mapping[str, Any]
    shared: bool
    """Whether other requests may have run at the same time: their batches round in another way."""


class CheckedServer:
    """A server with hybrid-pages.

    Args:
        served: the model to ask, with the time that is left.
        costs: counts them.
    """

    def __init__(self, served: ServedModel, costs: RunCosts) -> None:
        self.served, self.costs = served, costs
        self.rank: int | None = None
        """The engine core that gets the requests; None to let the server choose."""
        self.reasons_to_doubt = 0
        """How many answers may have shared their batches with others."""
        self._core: int | None = None
        """The engine core that gave the first answer."""
        self._logprobs = list(_LOGPROBS)

    def ask(
        self,
        tokens: Sequence[int],
        count: int,
        salt: str,
        source: str,
        *,
        stores: bool = False,
    ) -> CheckedAnswer:
        """The answer of ``count`` tokens to a prompt that may have one source alone.

        Raises:
            ServedModelError: there is no answer, hybrid-pages does not tell, or another engine core
                answers.
        """
        before = self._figures()
        said = self._complete(tokens, count, salt, source, stores=stores)
        after = self._figures()
        told = _told(said, self.served.base)
        self._require_core(told)
        answer = _answer(said, told, self.served.base)
        shared = _shared(before, after, len(answer.tokens))
        self.reasons_to_doubt += shared
        costs = self.costs
        costs.requests += 1
        costs.prompt_tokens += len(tokens)
        costs.computed_tokens += max(0, len(tokens) - answer.cached)
        costs.answer_tokens += len(answer.tokens)
        return CheckedAnswer(answer, told, shared)

    def _require_core(self, told: Mapping[str, Any]) -> None:
        """What one engine core has stored says nothing of another."""
        found = told.get("engine")
        if self._core is None:
            self._core = found
        expected = self._core if self.rank is None else self.rank
        if found != expected:
            raise ServedModelError(
                f"{self.served.base}: expected an answer of engine core {expected}, found one of "
                f"{found}: this address leads to several by turns; run verify at each of their "
                "addresses"
            )

    def drop(self, tokens: Sequence[int], salt: str) -> None:
        """Has the engine drop what it has of a prompt. It takes a step, and little time."""
        self.costs.requests += 1
        self.costs.prompt_tokens += len(tokens)
        body = self._body(tokens, 1, salt, {"source": "own", "drop": True}, stores=False)
        seconds = min(_END_SECONDS, self.costs.left(_END_SECONDS))
        self.served.ask("/v1/completions", body, headers=self._headers(), seconds=seconds)

    def waiting(self) -> float:
        """How many requests wait for a turn; 0 if that is not known."""
        samples = self._figures()
        return 0.0 if samples is None else samples.sum("vllm:num_requests_waiting")

    def _complete(
        self, tokens: Sequence[int], count: int, salt: str, source: str, *, stores: bool
    ) -> dict[str, Any]:
        while True:
            body = self._body(tokens, count, salt, {"source": source}, stores=stores)
            try:
                return self.served.ask("/v1/completions", body, headers=self._headers())
            except RefusedError as error:
                if "logprobs" not in str(error) or len(self._logprobs) == 1:
                    raise
                self._logprobs.pop(0)  # --max-logprobs allows fewer

    def _body(
        self,
        tokens: Sequence[int],
        count: int,
        salt: str,
        check: Mapping[str, Any],
        *,
        stores: bool,
    ) -> dict[str, Any]:
        hints: dict[str, Any] = {NAME: dict(check), "store": stores}
        if stores:
            hints["retain"] = _RETAIN_SECONDS
        return {
            "model": self.served.model,
            "prompt": list(tokens),
            "max_tokens": count,
            "ignore_eos": True,
            # A model's own defaults may count tokens of answers in another way than of prompts.
            "temperature": 0,
            "repetition_penalty": 1,
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "logprobs": self._logprobs[0],
            "return_tokens_as_token_ids": True,
            "cache_salt": salt,
            "kv_transfer_params": {KEY: hints},
        }

    def _headers(self) -> dict[str, str]:
        return {} if self.rank is None else {_RANK: str(self.rank)}

    def _figures(self) -> Samples | None:
        try:
            return scrape(self.served.base, self.costs.left())
        except (ScrapeError, CheckTimeout):
            return None


def _shared(before: Samples | None, after: Samples | None, own: int) -> bool:
    if before is None or after is None:
        return True
    made = "vllm:generation_tokens"
    others = after.sum(made) - before.sum(made) > own
    return others or any(each.sum("vllm:num_requests_running") > 0 for each in (before, after))


def _told(said: Mapping[str, Any], base: str) -> Mapping[str, Any]:
    params = said.get("kv_transfer_params")
    told = params.get(KEY) if isinstance(params, Mapping) else None
    hits = told.get("hit_tokens") if isinstance(told, Mapping) else None
    if not isinstance(told, Mapping) or not isinstance(hits, Mapping):
        raise ServedModelError(
            f"{base}: expected an engine whose HybridPagesConnector says what each prompt was "
            "restored from, found none: is it in --kv-transfer-config, in this version, and does "
            "no proxy between drop kv_transfer_params? If it has stopped, its log says why"
        )
    return told


def _answer(said: Mapping[str, Any], told: Mapping[str, Any], base: str) -> Answer:
    try:
        (choice,) = said["choices"]
        found = choice["logprobs"]
        tokens = [_id(token) for token in found["tokens"]]
        likely = [
            {_id(token): float(value) for token, value in (at or {}).items()}
            for at in found["top_logprobs"]
        ]
        for token, value, at in zip(tokens, found["token_logprobs"], likely, strict=True):
            at.setdefault(token, float(value))
    except (KeyError, TypeError, ValueError) as error:
        raise ServedModelError(
            f"{base}: expected an answer with log-probabilities and token ids, found another "
            f"({type(error).__name__}: {error}): does a proxy change answers?"
        ) from None
    hits = {str(name): int(count) for name, count in told["hit_tokens"].items()}
    plain = {"tokens": tokens, "likely": likely, "words": (), "text": ""}
    return Answer.read({**plain, "cached": sum(hits.values())}, hits)


def _id(token: str) -> int:
    if not token.startswith(_TOKEN):
        raise ServedModelError(
            f"expected tokens by their ids, found {token[:40]!r}: does a proxy change answers?"
        )
    return int(token.removeprefix(_TOKEN))
