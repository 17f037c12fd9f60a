"""An engine under mixed traffic for some seconds, over a disk and a store that fail on and off.

usage: serve_soak.py MODEL FOLDER PLAN

PLAN is JSON: the number of this `life`, its `style`, its `seconds`, `host_gb`, whether there are
`resets`, and in tests of the soak how many `pieces` of traffic there are at least, and what they
`plant` (`planted_soak.py`). Every line that begins with `HP ` is an event in JSON. Prompts are the
same in every life, so that what earlier ones have left is used.

Each answer is compared with that of a cold run, as its style says (`soak_styles.py`): to the bit,
or within a bound. Only the batches and answers of the style `blocks` have one that faults may meet.
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
from harness import Prompt, Result, tokens
from planted_soak import PLANTS
from soak_styles import STYLES, a_block_a_step

POOL = 24
COUNT = 4
SETTLE_SECONDS = 60.0
# What may come on top while nothing leaks: files of the tiers that are open, threads that come and
# go, freed memory that the system has not got back.
FILES, THREADS, MIB = 12, 4, 64
# Seconds of a life from which on growth counts: before, threads start and files are opened.
LONG = 120


def say(event: str, **facts: Any) -> None:
    print("HP " + json.dumps({"event": event, **facts}), flush=True)


class Soak:
    """One engine, its traffic, and what was found."""

    def __init__(self, model: Path, folder: Path, plan: dict[str, Any]) -> None:
        self.plan, self.style = plan, STYLES[plan["style"]]
        folder = folder / self.style.model
        self.store, self.away = folder / "store", folder / "store-away"
        if self.away.exists():
            self.away.rename(self.store)
        self.store.mkdir(parents=True, exist_ok=True)
        settings = {
            "host_gb": plan["host_gb"],
            "disk_path": str(folder / "disk"),
            "disk_gb": 0.03,
            "remote_url": f"file://{self.store}",
        }
        self.engine = self.style.engine(model, settings)
        self.touch_memory()
        # How long prompts are, in units. Where each token is a step, they are shorter.
        self.unit = self.engine.N // 4 if self.style.by_token else self.engine.N
        # What an answer computes depends on the style, and states of one must not serve another.
        self.salt = plan["style"]
        self.rng = random.Random(f"soak {plan['life']}")
        self.chats: list[Prompt] = []
        self.counts: dict[str, int] = {}
        self.wrong: list[str] = []
        self.farthest = 0.0
        self.samples: list[dict[str, int]] = []
        self.kept: list[Any] = []

    def run(self) -> None:
        """Traffic until the time is over, and then the search for what was leaked."""
        traffic: list[tuple[Callable[[], None], float]] = [
            (self.exact, 0 if self.style.inside else 6),
            (self.chat, 4),
            (self.batch, 3),
            (self.aborts, 2),
            (self.preempted, 2),
            (self.fault, 2),
            (self.engine.reset_all, 0.2 if self.plan["resets"] else 0),
        ]
        kinds, weights = zip(*traffic, strict=True)
        end = time.monotonic() + self.plan["seconds"]
        while time.monotonic() < end or len(self.samples) < self.plan.get("pieces", 0):
            kind = self.rng.choices(kinds, weights)[0]
            self.count(kind.__name__)
            kind()
            self.plant()
            if self.rng.random() < 0.6:
                self.forget()
            self.sample()
            say("alive", counts=self.counts, wrong=self.wrong)
        self.repair()
        self.check_nothing_is_held()
        self.check_nothing_grew()
        moved = {k: v for k, v in self.engine.stats().items() if k.startswith("hit_tokens")}
        say("ended", counts=self.counts, wrong=self.wrong, farthest=self.farthest, hits=moved)

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def forget(self) -> None:
        """Empties vLLM's own prefix cache, which it refuses to do while blocks are held."""
        if not self.engine.vllm.reset_prefix_cache():
            self.count("refused resets")

    def plant(self) -> None:
        """Does what is wrong, if the plan says so."""
        if name := self.plan.get("plant"):
            PLANTS[name][0](self.engine, self.kept)

    # ---- traffic

    def prompt(self, kind: str) -> Prompt:
        """One of some prompts, or a fork, an extension or a part of one."""
        n, number = self.unit, self.rng.randrange(POOL)
        root = tokens((kind, number // 4), (3 + number % 5) * n + 7 * number)
        new = tokens((kind, number, "new"), 2 * n + number)
        cut = (number % 3 + 1) * n
        return self.rng.choice([root, root + new, root[:cut] + new, root[: len(root) // n * n]])

    def exact(self) -> None:
        prompt = self.prompt("exact")
        with a_block_a_step(self.engine):
            found = self.engine.run(prompt, COUNT, salt="exact")
            cold = self.engine.cold(prompt, COUNT, salt="exact")
        self.count("compared to the bit")
        if found != cold:
            self.complain("alone", prompt, found, cold)

    def compare(self, prompt: Prompt, found: Result) -> None:
        cold = self.engine.cold(prompt, len(found.tokens), salt=self.salt)
        self.count("compared" if self.style.within else "compared to the bit")
        self.farthest = max(self.farthest, found.distance(cold))
        if self.style.differs(found, cold):
            self.complain(self.plan["style"], prompt, found, cold)

    def complain(self, how: str, prompt: Prompt, found: Result, cold: Result) -> None:
        far = found.distance(cold)
        self.wrong.append(f"{how}, {len(prompt)} tokens, resumed at {found.resumed}: {far} off")

    def chat(self) -> None:
        """Some turns, each of which goes on from the answer before."""
        prompt = tokens(("chat", self.rng.randrange(POOL)), self.unit + 9)
        for turn in range(4):
            found = self.engine.run(prompt, 9, salt=self.salt)
            if turn == 3:
                self.compare(prompt, found)
            prompt += found.tokens + tokens(("user", len(prompt)), 30 + turn)
            if self.rng.random() < 0.3:
                self.forget()

    def batch(self) -> None:
        prompts = [self.prompt("near") for _ in range(6)]
        found = self.engine.run_all(prompts, COUNT, salt=self.salt)
        self.compare(prompts[-1], found[-1])

    def aborts(self) -> None:
        """Requests that end early, at any moment."""
        prompts = [self.prompt("near") for _ in range(4)]
        names = [self.engine.submit(prompt, 30, salt=self.salt) for prompt in prompts]
        for name in names[1:]:
            for _ in range(self.rng.randrange(60 if self.style.by_token else 6)):
                self.engine.step()
            self.engine.abort(name)
        (found,) = self.engine.finish(names[:1])
        self.compare(prompts[0], found)

    def preempted(self) -> None:
        """Requests of which vLLM's pool can't hold all, and some that are preempted anyway."""
        prompts = [self.prompt("near") for _ in range(5)]
        with self.engine.squeezed(24 if self.style.by_token else 44):
            names = [self.engine.submit(prompt, 40, salt=self.salt) for prompt in prompts]
            for _ in range(self.rng.randrange(4, 12)):
                self.engine.step()
            if self.engine.scheduler.running:
                self.engine.preempt_last()
            found = self.engine.finish(names)
        self.count("preemptions") if any(each.preemptions for each in found) else None
        self.compare(prompts[0], found[0])

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
        connection = self.engine.half.connection
        for tier in (connection.disk, connection.remote):
            if not tier.settle(SETTLE_SECONDS):
                self.wrong.append(f"copies of {tier} have not ended in {SETTLE_SECONDS} s")
        # Copies that have ended are looked at in steps, of which there are none any more.
        connection.cache.poll()

    # ---- what is held

    def touch_memory(self) -> None:
        """Writes the caches of the engine and of the host once: they take memory when written."""
        for cache in self.engine.worker._kv_caches.values():
            cache.untyped_storage().fill_(0)
        arena = self.engine.half.connection.arena
        for slot in range(arena.slots):
            arena.write(slot, bytes(arena.slot_bytes))

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
        self.forget()
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
        counts = self.plan["seconds"] >= LONG or "plant" in self.plan
        third = len(self.samples) // 3
        for name, slack in (("MiB", MIB), ("threads", THREADS), ("files", FILES)):
            middle, last = (
                statistics.median(sample[name] for sample in self.samples[part])
                for part in (slice(third, 2 * third), slice(2 * third, None))
            )
            say("grew", what=name, middle=middle, last=last)
            if last > middle + slack and counts:
                self.wrong.append(f"{name} grew from {middle} to {last}")


def main(model: Path, folder: Path, plan: dict[str, Any]) -> None:
    soak = Soak(model, folder, plan)
    say("ready")
    soak.run()
    soak.engine.shutdown()
    say("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
