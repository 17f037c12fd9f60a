"""The runs on an engine that serves: each prompt cold, on vLLM's own hit, and from each tier.

They are those of :mod:`hybrid_pages.verify.runs`, without an engine of their own: the engine is
told by a hint which source a prompt may have. Other requests may run at the same time, and their
batches change the rounding. So a difference gets a second look before it counts: more cold runs
show how much the engine itself differs now, and what was restored beside others is restored again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hybrid_pages.served import ServedModelError
from hybrid_pages.verify.answers import Answer
from hybrid_pages.verify.prompts import VerifyPrompt
from hybrid_pages.verify.runs import COLD, COLD_AGAIN, LOCAL, LOCAL_AGAIN, Runs
from hybrid_pages.verify.serving import BusyError, CheckedAnswer, CheckedServer
from hybrid_pages.verify.tiers import HOST
from hybrid_pages.verify.verdict import BLIND, DIFFERS, VerdictRow, judge
from hybrid_pages.vllm.scheduler.requests.check import OWN, SALT

GREETING = (1,) * 8
"""Tokens that any model has."""
_PATIENCE = {"host": 5.0, "disk": 20.0, "remote": 60.0}
"""For how many seconds of a run a tier may still be taking what was stored."""
_CALM_SECONDS = 60.0
"""How long a run waits for a moment in which no request waits."""
_MORE = 2
"""How many more cold runs a second look takes."""

Made = Callable[[dict[str, Any]], list[VerifyPrompt]]
"""Makes the prompts, when facts about the engine are known."""


class ServingRuns:
    """All runs on one engine.

    Args:
        engine: to ask.
        run: names the run; nobody guesses it.
        step: is told what is being done.
    """

    def __init__(self, engine: CheckedServer, run: str, step: Callable[[str], None]) -> None:
        self.runs, self._engine, self._run, self._step = Runs(), engine, run, step
        self.failed: list[str] = []
        """Why loads have failed, by tier."""
        self._salts: dict[str, tuple[int, ...]] = {}
        """The longest prompt that was sent under each salt that is in use."""
        self._patience = dict(_PATIENCE)
        self._shared: set[tuple[str, int, bool]] = set()
        """The tier, prompt and part of each answer that may have shared its batches."""

    def collect(self, made: Made, facts: dict[str, Any]) -> Runs:
        """Runs all prompts in every way, on each engine core.

        facts: about the server; those about the engine are added.

        Raises:
            ServedModelError: the server can't be asked any more.
        """
        self._calm()
        told = self._engine.ask(GREETING, 1, f"{SALT}{self._run}", OWN).told
        self.runs.facts = {**facts, "tiers": list(told["tiers"]), **_engine_facts(told)}
        prompts = made(self.runs.facts)
        for rank in self._ranks(told):
            self._engine.rank = rank
            for prompt in prompts:
                name = prompt.name if rank is None else f"engine {rank}: {prompt.name}"
                self._prompt(replace(prompt, name=name))
        return self.runs

    def _ranks(self, told: Any) -> Sequence[int | None]:
        """The engine cores behind the address, by the number that the server knows them by."""
        if told["engines"] == 1:
            return (None,)
        ranks = range(int(told["engines"]))
        for rank in ranks:
            self._engine.rank = rank
            try:
                found = self._engine.ask(GREETING, 1, f"{SALT}{self._run}", OWN).told
            except ServedModelError:
                found = {}
            if found.get("engine") != rank:
                self._engine.rank = None
                self.runs.facts["notes"].append(
                    f"engine core {told['engine']} of {told['engines']} alone: this address leads "
                    "to no other; run verify at each of their addresses"
                )
                return (None,)
        return ranks

    def _calm(self) -> None:
        """Waits for a moment in which no request waits for a turn."""
        until = time.monotonic() + min(_CALM_SECONDS, self._engine.costs.left())
        while (waiting := self._engine.waiting()) > 0:
            if time.monotonic() > until:
                raise BusyError(
                    f"{self._engine.served.base}: expected a moment without requests that wait for "
                    f"a turn within {_CALM_SECONDS:g} s, found {waiting:g}: nothing was compared"
                )
            time.sleep(1)

    # ---- one prompt

    def _prompt(self, prompt: VerifyPrompt) -> None:
        runs, at = self.runs, len(self.runs.prompts)
        self._calm()
        self._step(prompt.name)
        runs.prompts.append(prompt)
        first, second, half = (f"{SALT}{self._run}-{at}-{each}" for each in ("a", "b", "half"))
        try:
            for salt, cold, local in ((first, COLD, LOCAL), (second, COLD_AGAIN, LOCAL_AGAIN)):
                runs.phase(cold).append(self._ask(prompt, salt, OWN, stores=True).answer)
                runs.phase(local).append(self._ask(prompt, salt, OWN).answer)
            if prompt.answer_tokens > 1:
                begun = replace(prompt, answer_tokens=prompt.answer_tokens // 2)
                runs.halves[at] = self._ask(begun, half, OWN, stores=True).answer
            for tier in runs.facts["tiers"]:
                self._step(f"{prompt.name}, {tier}")
                runs.phase(tier).append(self._restored(at, tier, first))
                if at in runs.halves:
                    rests = runs.rests.setdefault(tier, {})
                    rests[at] = self._restored(at, tier, half, rest=True)
            self._look_again(at, first, half)
        except BaseException:
            self._forget(at)
            raise
        finally:
            for salt in list(self._salts):
                self._drop(salt)

    def _forget(self, at: int) -> None:
        """Forgets what is known of a prompt whose runs have not all ended."""
        runs = self.runs
        del runs.prompts[at:]
        for answers in runs.answers.values():
            del answers[at:]
        for by_prompt in (runs.halves, *runs.rests.values()):
            by_prompt.pop(at, None)
        runs.more.pop(at, None)

    def _restored(self, at: int, tier: str, salt: str, *, rest: bool = False) -> Answer:
        """The answer that is restored from a tier alone, as soon as it has all of the prompt."""
        prompt, half = self.runs.prompts[at], self.runs.halves.get(at)
        if rest and half is not None:
            count = prompt.answer_tokens - len(half.tokens)
            prompt = replace(prompt, tokens=prompt.tokens + half.tokens, answer_tokens=count)
        wait = 0.1
        while True:
            found = self._ask(prompt, salt, tier)
            costs = self._engine.costs
            costs.host_bytes = max(costs.host_bytes, 3 * int(found.told["loaded_bytes"]))
            if found.told["failed"]:
                self.failed.append(f"{tier}: {found.told['failed']}")
            elsewhere = set(found.told["hit_tokens"]) - {tier}
            gone = not found.answer.cached and tier == HOST
            if found.answer.cached and not elsewhere:
                if found.shared:
                    self._shared.add((tier, at, rest))
                return found.answer
            # Another connector's hits stay what they are, and are complained of.
            if gone or self._patience.get(tier, 0.0) <= 0:
                ours = set(self.runs.facts["tiers"])
                return found.answer if elsewhere - ours else _nothing(found.answer)
            time.sleep(wait)
            self._patience[tier] -= wait
            wait = min(2 * wait, 5.0)

    def _look_again(self, at: int, first: str, half: str) -> None:
        rows = [row for row in judge(self.runs).rows if row.prompt == at and row.verdict == DIFFERS]
        if not rows:
            return
        prompt = self.runs.prompts[at]
        self._step(f"{prompt.name}, again")
        for more in range(_MORE):
            salt = f"{SALT}{self._run}-{at}-{more}"
            cold = self._ask(prompt, salt, OWN, stores=True).answer
            self.runs.more.setdefault(at, []).append(cold)
        for row in rows:
            self._restore_again(row, first, half)

    def _restore_again(self, row: VerdictRow, first: str, half: str) -> None:
        """Other batches move a log-probability by a little: if the answer may have shared them,
        the next one counts in its place."""
        rest = bool(row.behind)
        if (row.tier, row.prompt, rest) not in self._shared or row.distance > BLIND:
            return
        found = self._restored(row.prompt, row.tier, half if rest else first, rest=rest)
        if not found.cached:
            return
        if rest:
            self.runs.rests[row.tier][row.prompt] = found
        else:
            self.runs.phase(row.tier)[row.prompt] = found

    # ---- requests

    def _ask(
        self, prompt: VerifyPrompt, salt: str, source: str, *, stores: bool = False
    ) -> CheckedAnswer:
        if len(prompt.tokens) > len(self._salts.get(salt, ())):
            self._salts[salt] = prompt.tokens  # the end of an answer may have the only state
        return self._engine.ask(prompt.tokens, prompt.answer_tokens, salt, source, stores=stores)

    def _drop(self, salt: str) -> None:
        """Has the engine drop what it has under a salt. If that fails, it is evicted some time."""
        tokens = self._salts.pop(salt, None)
        if tokens is not None:
            with contextlib.suppress(ServedModelError):
                self._engine.drop(tokens, salt)


def _engine_facts(told: Any) -> dict[str, Any]:
    return {"block_tokens": int(told["block_tokens"])}


def _nothing(answer: Answer) -> Answer:
    return replace(answer, cached=0, source="")
