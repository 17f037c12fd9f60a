"""An engine under mixed traffic for some seconds, over a disk and a store that fail on and off.

usage: serve_soak.py MODEL FOLDER PLAN

PLAN is JSON: the number of this `life`, its `seconds`, `host_gb`, whether there are `resets`, and
whether requests resume `inside` blocks, as they do by default. Every line that begins with `HP ` is
an event in JSON. Prompts are the same in every life, so that what earlier ones have left is used.

Prompts under the salt `exact` run alone in steps of one block: there the same bytes are computed
wherever a prompt resumes, so that each answer must be that of a cold run, to the bit. So must those
under the salt `single`, which resume inside blocks in steps of one token. Others come in batches,
go on from answers, are aborted and preempted: they are compared within NOISE, or four times that
where they resume inside of what kernels compute at once.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fixtures  # noqa: F401 (sets the environment)
from harness import NOISE, Engine, Prompt, patched, tokens

POOL = 24
COUNT = 4
SETTLE_SECONDS = 60.0
# What may come on top while nothing leaks: files of the tiers that are open, freed memory that the
# system has not got back.
FILES, MIB = 12, 48
# Seconds of a life from which on growth counts: before, memory is touched for the first time.
LONG = 120


def say(event: str, **facts: Any) -> None:
    print("HP " + json.dumps({"event": event, **facts}), flush=True)


class Soak:
    """One engine, its traffic, and what was found."""

    def __init__(self, model: Path, folder: Path, plan: dict[str, Any]) -> None:
        self.folder, self.plan = folder, plan
        self.store, self.away = folder / "store", folder / "store-away"
        if self.away.exists():
            self.away.rename(self.store)
        self.store.mkdir(exist_ok=True)
        settings = {
            "host_gb": plan["host_gb"],
            "disk_path": str(folder / "disk"),
            "disk_gb": 0.03,
            "remote_url": f"file://{self.store}",
        }
        self.engine = Engine(model, settings, inside=plan["inside"])
        self.rng = random.Random(f"soak {plan['life']}")
        self.chats: list[Prompt] = []
        self.counts: dict[str, int] = {}
        self.wrong: list[str] = []
        self.farthest = 0.0
        self.samples: list[dict[str, int]] = []

    def run(self) -> None:
        """Traffic until the time is over, and then the search for what was leaked."""
        traffic: list[tuple[Callable[[], None], float]] = [
            (self.exact, 0 if self.plan["inside"] else 6),
            (self.token_by_token, 2 if self.plan["inside"] else 0),
            (self.chat, 4),
            (self.batch, 3),
            (self.aborts, 2),
            (self.preempted, 2),
            (self.fault, 2),
            (self.engine.reset_all, 0.2 if self.plan["resets"] else 0),
        ]
        kinds, weights = zip(*traffic, strict=True)
        end = time.monotonic() + self.plan["seconds"]
        while time.monotonic() < end:
            kind = self.rng.choices(kinds, weights)[0]
            self.count(kind.__name__)
            kind()
            if self.rng.random() < 0.6:
                self.engine.reset_local()
            self.sample()
            say("alive", counts=self.counts, wrong=self.wrong)
        self.repair()
        self.check_nothing_is_held()
        self.check_nothing_grew()
        moved = {k: v for k, v in self.engine.stats().items() if k.startswith("hit_tokens")}
        say("ended", counts=self.counts, wrong=self.wrong, farthest=self.farthest, hits=moved)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # ---- traffic

    def prompt(self, kind: str) -> Prompt:
        """One of some prompts, or a fork, an extension or a part of one."""
        n, number = self.engine.N, self.rng.randrange(POOL)
        root = tokens((kind, number // 4), (3 + number % 5) * n + 7 * number)
        new = tokens((kind, number, "new"), 2 * n + number)
        cut = (number % 3 + 1) * n
        return self.rng.choice([root, root + new, root[:cut] + new, root[: len(root) // n * n]])

    def exact(self) -> None:
        prompt = self.prompt("exact")
        with patched(self.engine.scheduler, "max_num_scheduled_tokens", self.engine.N):
            found = self.engine.run(prompt, COUNT, salt="exact")
            cold = self.engine.cold(prompt, COUNT, salt="exact")
        self.count("compared exactly")
        if found != cold:
            self.wrong.append(
                f"exact, {len(prompt)} tokens, resumed at {found.resumed}: {found.distance(cold)}"
            )

    def token_by_token(self) -> None:
        """A chat in steps of one token, whose bytes are the same wherever a turn resumes."""
        prompt = tokens(("single", self.rng.randrange(6)), 20 + self.engine.N // 4)
        with patched(self.engine.scheduler, "max_num_scheduled_tokens", 1):
            for turn in range(3):
                found = self.engine.run(prompt, 6, salt="single")
                cold = self.engine.cold(prompt, 6, salt="single")
                self.count("compared exactly")
                if found != cold:
                    self.wrong.append(
                        f"token by token, {len(prompt)} tokens, resumed at {found.resumed}: "
                        f"{found.distance(cold)}"
                    )
                prompt += found.tokens + tokens(("single user", turn), 9 + turn)
                self.engine.reset_local()

    def near(self, prompt: Prompt, found: Any) -> None:
        far = found.distance(self.engine.cold(prompt, len(found.tokens), salt="near"))
        self.count("compared")
        self.farthest = max(self.farthest, far)
        if far >= (4 * NOISE if self.plan["inside"] else NOISE):
            self.wrong.append(f"near, {len(prompt)} tokens, resumed at {found.resumed}: {far}")

    def chat(self) -> None:
        """Some turns, each of which goes on from the answer before."""
        prompt = tokens(("chat", self.rng.randrange(POOL)), self.engine.N + 9)
        for turn in range(4):
            found = self.engine.run(prompt, 9, salt="near")
            if turn == 3:
                self.near(prompt, found)
            prompt += found.tokens + tokens(("user", len(prompt)), 30 + turn)
            if self.rng.random() < 0.3:
                self.engine.reset_local()

    def batch(self) -> None:
        prompts = [self.prompt("near") for _ in range(6)]
        found = self.engine.run_all(prompts, COUNT, salt="near")
        self.near(prompts[-1], found[-1])

    def aborts(self) -> None:
        """Requests that end early, at any moment."""
        prompts = [self.prompt("near") for _ in range(4)]
        names = [self.engine.submit(prompt, 30, salt="near") for prompt in prompts]
        for name in names[1:]:
            for _ in range(self.rng.randrange(6)):
                self.engine.step()
            self.engine.abort(name)
        (found,) = self.engine.finish(names[:1])
        self.near(prompts[0], found)

    def preempted(self) -> None:
        """Requests of which vLLM's pool can't hold all, and some that are preempted anyway."""
        prompts = [self.prompt("near") for _ in range(5)]
        with self.engine.squeezed(44):
            names = [self.engine.submit(prompt, 40, salt="near") for prompt in prompts]
            for _ in range(self.rng.randrange(4, 12)):
                self.engine.step()
            if self.engine.scheduler.running:
                self.engine.preempt_last()
            found = self.engine.finish(names)
        self.count("preemptions") if any(each.preemptions for each in found) else None
        self.near(prompts[0], found[0])

    def fault(self) -> None:
        """The store goes or comes back, or no file may grow any more, or may again."""
        if self.rng.random() < 0.5:
            here, there = self.store, self.away
            if not here.exists():
                here, there = there, here
            elif there.exists():
                return
            here.rename(there)
        else:
            least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
            less = 1 << 16 if least == most else most
            resource.setrlimit(resource.RLIMIT_FSIZE, (less, most))

    def repair(self) -> None:
        """Ends all faults, and waits for what is under way."""
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        if self.away.exists() and not self.store.exists():
            self.away.rename(self.store)
        self.engine.drain()
        self.engine.half.connection.disk.settle(SETTLE_SECONDS)

    # ---- what is held

    def sample(self) -> None:
        status = Path("/proc/self/status").read_text().splitlines()
        read = {line.split(":")[0]: line.split()[1] for line in status if len(line.split()) > 1}
        self.samples.append(
            {
                "MiB": int(read["VmRSS"]) >> 10,
                "threads": int(read["Threads"]),
                "files": len(os.listdir("/proc/self/fd")),
            }
        )

    def check_nothing_is_held(self) -> None:
        """Neither blocks of the engine nor slots, leases or jobs of ours."""
        engine = self.engine
        engine.drain()
        engine.reset_local()
        half, stats = engine.half, engine.stats()
        blocks = engine.pool.num_gpu_blocks - 1 - engine.pool.get_num_free_blocks()
        held = {
            "blocks": blocks,
            "leased bytes": stats["leased_bytes"],
            "stores": int(half.storing),
            "requests": len(half._requests),
            "worker's copies": len(engine.worker._stores) + len(engine.worker._loads),
        }
        for what, count in held.items():
            if count:
                self.wrong.append(f"{count} {what} are held at the end")
        if problem := half.connection.cache.audit():
            self.wrong.append(f"audit: {problem}")

    def check_nothing_grew(self) -> None:
        """Memory, threads and files, from the second third of the time to the last one."""
        gc.collect()
        third = len(self.samples) // 3
        for name, slack in (("MiB", MIB), ("threads", 0), ("files", FILES)):
            middle, last = (
                statistics.median(sample[name] for sample in self.samples[part])
                for part in (slice(third, 2 * third), slice(2 * third, None))
            )
            say("grew", what=name, middle=middle, last=last)
            if last > middle + slack and self.plan["seconds"] >= LONG:
                self.wrong.append(f"{name} grew from {middle} to {last}")


def main(model: Path, folder: Path, plan: dict[str, Any]) -> None:
    soak = Soak(model, folder, plan)
    say("ready")
    soak.run()
    soak.engine.shutdown()
    say("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
