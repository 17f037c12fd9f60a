"""What a connector costs vLLM's scheduler, step by step, where the processor's caches are kept.

vLLM's real scheduler, over workers that answer at once and copy nothing. On a machine with a GPU
the scheduler's process only waits between two steps; on a CPU the forward pass has used the caches
for itself. Here every prompt runs both ways. README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "scheduler"))

import vllm_environment  # noqa: F401 - before vLLM

# isort: split
import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
    OffloadingConnectorMetadata,
    OffloadingWorkerMetadata,
)
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

import simulation.config
from hybrid_pages.vllm.messages import Outcome, StepMetadata, WorkerMetadata, packed
from overhead.engine import Probe, Step
from overhead.report import print_table
from overhead.samples import NONE, OURS, RIVAL
from simulation.engine import Engine, connector
from simulation.shapes import BLOCK_TOKENS, GDN

PROMPT_BLOCKS = 96
STEP_BLOCKS = 32
DECODE_TOKENS = 16
BLOCKS = 1200
"""Of the engine's cache, which holds a few prompts."""
IN_A_ROW = 4
"""Measured prompts of an engine before the next one's turn, behind one that is not."""
WARM_UP = 3
"""Rounds before the measured ones: they fill that cache, so that the others evict."""
LARGER_THAN_CACHES = 64 << 20

simulation.config.MAX_MODEL_LEN = 2 * PROMPT_BLOCKS * BLOCK_TOKENS


class Instant(Engine):
    """An engine whose workers say at once that everything is done, and touch no block."""

    empties_caches = False

    def __init__(self, *given: Any, **settings: Any) -> None:
        self._bytes = np.zeros(LARGER_THAN_CACHES, dtype=np.uint8)
        super().__init__(*given, **settings)
        self._reported = False
        self.stores = 0

    def _execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        if self.empties_caches:
            self._bytes += 1
        report = self._report(output.kv_connector_metadata)
        names = list(output.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[self._sampled(name) for name in names],
            kv_connector_output=report,
        )

    def _sampled(self, name: str) -> list[int]:
        request = self.scheduler.requests[name]
        return [3] if request.num_computed_tokens >= request.num_prompt_tokens else []

    def _report(self, metadata: Any) -> KVConnectorOutput | None:
        """What the workers would say if their copies took no time."""
        if isinstance(metadata, StepMetadata):
            self.stores += len(metadata.stores)
            done: Any = WorkerMetadata(
                {
                    job: [Outcome(0, checksums=packed(range(len(entries))))]
                    for job, entries in metadata.stores.items()
                }
            )
            if not self._reported:
                self._reported = True
                worker = self.runners[0].connector
                worker.bind_connector_metadata(metadata)
                done.reports.extend(worker.build_connector_worker_meta().reports)
        elif isinstance(metadata, OffloadingConnectorMetadata):
            self.stores += len(metadata.store_jobs)
            done = OffloadingWorkerMetadata(dict.fromkeys(metadata.store_jobs, 1))
        else:
            return None
        return KVConnectorOutput(kv_connector_worker_meta=done)


def start(variant: str, host_mib: int) -> tuple[Instant, Probe]:
    transfer = None
    if variant == OURS:
        transfer = connector(host_gb=host_mib / 1024)
    elif variant == RIVAL:
        extra = {
            "spec_name": "MemcpyOffloadingSpec",
            "spec_module_path": "rivals.memcpy_spec",
            "cpu_bytes_to_use": host_mib << 20,
        }
        transfer = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
    engine = Instant(
        GDN,
        transfer=transfer,
        blocks=BLOCKS,
        batched_tokens=STEP_BLOCKS * BLOCK_TOKENS,
        async_scheduling=False,
        runner_version=1,
    )
    return engine, Probe(engine.scheduler)


def run(engine: Instant, probe: Probe, prompt: list[int], *, emptied: bool) -> list[Step]:
    """The steps of one prompt, alone, that is new to the engine."""
    engine.empties_caches = emptied
    probe.reset()
    engine.add(prompt, DECODE_TOKENS)
    engine.run()
    return probe.steps


def kinds(steps: list[Step]) -> Iterator[tuple[str, Step]]:
    """Each step with what it is called in the table."""
    prompts = [step for step in steps if step.tokens > 1]
    for number, step in enumerate(prompts):
        yield "prompt, all", step
        if number == 0:
            yield "prompt, the first", step
        elif number == 1:
            yield "prompt, the second", step
    for step in steps:
        if step.tokens == 1:
            yield "decode", step


Samples = dict[tuple[str, bool, str], list[Step]]


def measure(variants: Iterable[str], rounds: int, host_mib: int) -> Samples:
    """Runs new prompts on every engine in turn; another one begins each time."""
    engines = {variant: start(variant, host_mib) for variant in variants}
    rng, samples = random.Random(0), defaultdict(list)
    for number in range(-WARM_UP, rounds):
        for emptied in (False, True):
            names = list(engines)
            turn = number % len(names)
            for variant in names[turn:] + names[:turn]:
                for place in range(1 + IN_A_ROW):
                    prompt = [rng.randrange(3, 500) for _ in range(PROMPT_BLOCKS * BLOCK_TOKENS)]
                    steps = run(*engines[variant], prompt, emptied=emptied)
                    # The first one finds another engine's bytes in the caches.
                    for kind, step in kinds(steps) if number >= 0 and place else ():
                        samples[variant, emptied, kind].append(step)
    for variant, (engine, _) in engines.items():
        check(variant, engine, 2 * (WARM_UP + rounds) * (1 + IN_A_ROW))
        engine.close()
    return samples


def check(variant: str, engine: Instant, prompts: int) -> None:
    """Raises if a connector has stored less than all prompts: then its times mean nothing."""
    pages = prompts * PROMPT_BLOCKS
    if variant != NONE and engine.stores < prompts:
        raise RuntimeError(f"{variant}: expected a store of each prompt, found {engine.stores}")
    if variant == OURS:
        stored = engine.half.stats()["counters"].get("stored_entries:pages", 0)
        if stored < pages:
            raise RuntimeError(f"{variant}: expected {pages} pages stored, found {stored:g}")


def median_us(steps: list[Step], of: Callable[[Step], float]) -> float:
    return statistics.median(map(of, steps)) * 1e6


def rows(samples: Samples) -> Iterator[list[str]]:
    yield ["caches", "step", "variant", "connector, us", "all else, us", "ratio"]
    for (variant, emptied, kind), steps in sorted(samples.items(), key=lambda item: item[0][1:]):
        theirs = median_us(steps, lambda step: step.scheduler_s - step.connector_s)
        cost = median_us(steps, lambda step: step.connector_s)
        caches = "emptied" if emptied else "kept"
        yield [caches, kind, variant, f"{cost:.1f}", f"{theirs:.1f}", f"{cost / theirs:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=25, help="measured rounds of four prompts, each way (25)")
    add("--host-mib", type=int, default=32, help="budget of each connector (32)")
    given = parser.parse_args()
    samples = measure((NONE, OURS, RIVAL), given.rounds, given.host_mib)
    print_table("scheduler: schedule + update_from_output, us per step", rows(samples))


if __name__ == "__main__":
    main()
