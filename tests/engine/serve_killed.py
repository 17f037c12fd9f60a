"""An engine on a disk that checks what earlier ones have left, then serves until it is killed.

usage: serve_killed.py MODEL DISK PLAN

PLAN is JSON: the number of this life; whether it serves requests `together`, in one batch; the
prompts to check, each a list of [seed, tokens], and whether a cold run is an `exact` reference for
it, a `near` one, or not needed; and whether to `serve` afterwards. Every line that begins with
`HP ` is an event in JSON.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fixtures  # noqa: F401 (sets the environment)
from harness import Engine, Prompt, Result, tokens

Parts = list[list[Any]]
COUNT = 8
SETTLE_SECONDS = 60.0
DISK_GB = 1.0


def say(event: str, **facts: Any) -> None:
    print("HP " + json.dumps({"event": event, **facts}), flush=True)


def prompt_of(parts: Parts) -> Prompt:
    return tuple(token for seed, count in parts for token in tokens(seed, count))


def answer(result: Result) -> list[Any]:
    """What JSON keeps of a result, to the bit."""
    return [list(result.tokens), [[list(pair) for pair in at] for at in result.logprobs]]


class Life:
    """One engine, from its start to its end."""

    def __init__(self, model: Path, disk: Path, plan: dict[str, Any]) -> None:
        self.plan, self.together = plan, plan["together"]
        # One sequence at a time: its steps, and so its bytes, are those of a request alone.
        seqs = 16 if self.together else 1
        settings = {"disk_path": str(disk), "disk_gb": DISK_GB}
        self.engine = Engine(model, settings, max_num_seqs=seqs)
        self.rng = random.Random(repr(("life", plan["life"])))
        self.made = 0
        self._watch()

    def stats(self) -> dict[str, int]:
        return dict(self.engine.half.connection.disk.stats())

    def kept(self) -> int:
        """Entries that the disk reports to outlive a kill at this instant."""
        stats = self.stats()
        return stats["entries"] - (stats["writes"] - stats["durable"])

    def failures(self) -> dict[str, float]:
        found = self.engine.stats()
        found |= {key: count for key, count in self.stats().items() if key.startswith("failed")}
        return {key: count for key, count in found.items() if count and "fail" in key}

    def _watch(self) -> None:
        step: Callable[[], None] = self.engine.step

        def watched() -> None:
            step()
            say("kept", entries=self.kept())

        self.engine.step = watched  # type: ignore[method-assign]

    def settle(self, prompts: list[Parts]) -> None:
        """Waits until the disk has everything, and says so."""
        if not self.engine.half.connection.disk.settle(SETTLE_SECONDS):
            raise RuntimeError(f"the disk did not settle in {SETTLE_SECONDS} s: {self.stats()}")
        say("durable", prompts=prompts)

    # ---- what others have left

    def check(self) -> None:
        for each in self.plan["check"]:
            self._check(each["prompt"], each["cold"])
            self.engine.reset_local()
        self.settle([each["prompt"] for each in self.plan["check"]])
        say("checked", failures=self.failures(), dropped=self.stats()["dropped"])

    def _check(self, parts: Parts, cold: str) -> None:
        engine, prompt = self.engine, prompt_of(parts)
        with engine.counting() as counted:
            found = engine.run(prompt, COUNT)
        equal, distance = True, 0.0
        if cold != "no":
            engine.reset_local()
            with engine.looking_away():
                distance = found.distance(engine.run(prompt, COUNT))
        if cold == "exact":
            equal = found == engine.local_hit(prompt, found, COUNT)
        say(
            "found",
            prompt=parts,
            resumed=found.resumed,
            whole=(len(prompt) - 1) // engine.N * engine.N,
            disk=counted.get("hit_tokens:disk", 0),
            answer=answer(found),
            equal=equal,
            distance=distance,
        )

    # ---- the load

    def serve(self) -> None:
        """Requests for ever: what ended is reported durable while others are under way."""
        engine, ended = self.engine, []
        while True:
            prompts = [self._prompt() for _ in range(6 if self.together else 3)]
            say("sent", prompts=prompts)
            names = [
                engine.submit(prompt_of(parts), self.rng.choice([COUNT, 40])) for parts in prompts
            ]
            for _ in range(self.rng.randrange(8)):
                engine.step()
            if ended:
                self.settle(ended)
            engine.finish(names)
            ended = prompts
            if self.together:
                for parts in prompts:
                    say("answer", prompt=parts, answer=self._own_hit(parts))
            engine.reset_local()

    def _prompt(self) -> Parts:
        """A new one, or the continuation of one from an earlier life."""
        self.made += 1
        seed = f"{self.plan['life']}:{self.made}"
        new = [seed, self.rng.randrange(1, 24) * self.engine.N + self.rng.randrange(1, 20)]
        before = self.plan["check"]
        if self.together and before and self.rng.random() < 0.3:
            parts = self.rng.choice(before)["prompt"]
            if len(parts) < 3:
                return [*parts, new]
        return [new]

    def _own_hit(self, parts: Parts) -> list[Any]:
        """What vLLM's own blocks give, which the batch has just made."""
        prompt = prompt_of(parts)
        whole = (len(prompt) - 1) // self.engine.N * self.engine.N
        like = Result((), (), whole, 0, 0, None, 0)
        return answer(self.engine.local_hit(prompt, like, COUNT))


def main(model: Path, disk: Path, plan: dict[str, Any]) -> None:
    life = Life(model, disk, plan)
    say("ready", entries=life.stats()["entries"], failures=life.failures())
    life.check()
    if plan["serve"]:
        life.serve()
    life.engine.shutdown()
    say("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
