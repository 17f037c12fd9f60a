"""Time to first token of prompts restored from disk: hybrid-pages against vLLM's own file tier.

Two engines of one tiny hybrid model store prompts, one with `disk_path`, one with vLLM's
`TieringOffloadingSpec` and its `fs` tier (by the memcpy spec of rivals/). Both end and start again,
so that no memory holds anything, beside a third one without a connector. Then each prompt runs on
all three, in turn, each time from another one on. While prompts are stored, a third engine without
a disk shows what the disk costs. README.md says how to read the tables.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_overhead import engine_settings
from overhead import again
from overhead.again import Engines, drop_cached
from overhead.driver import DECODE_TOKENS, Progress, rotated
from overhead.report import print_table
from overhead.samples import COLD, LOCAL, NONE, OURS, paired, spread

RIVAL = "vLLM fs tier"
DISKLESS = "hybrid-pages, no disk"
HOST, DISK = "host", "disk"
RESTORED = (OURS, RIVAL)
STORING = (DISKLESS, *RESTORED)
# Each prompt's phases: where its first blocks are when it runs.
RUNS = (
    ((NONE, COLD), (OURS, DISK), (RIVAL, DISK)),
    ((NONE, LOCAL), (OURS, HOST), (RIVAL, HOST)),
)


def transfer_config(variant: str, folder: Path, host_mib: int) -> dict[str, Any]:
    """A connector's --kv-transfer-config: equal host memory, folders of one file system."""
    if variant in (OURS, DISKLESS):
        extra: dict[str, Any] = {"host_gb": host_mib / 1024}
        if variant == OURS:
            extra |= {"disk_path": str(folder), "disk_gb": 4}
        name = "HybridPagesConnector"
    else:
        name = "OffloadingConnector"
        extra = {
            "spec_name": "MemcpyTieringSpec",
            "spec_module_path": "memcpy_tiering_spec",
            "cpu_bytes_to_use": host_mib << 20,
            "secondary_tiers": [{"type": "fs", "root_dir": str(folder)}],
        }
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}


class Bench(again.Bench):
    """Ours and vLLM's, from disk."""

    name = "disk"

    def __init__(self, options: argparse.Namespace, model: Path, place: Path) -> None:
        super().__init__(options, model, place)
        self.whole: dict[tuple[str, str], list[float]] = {}
        """Milliseconds of whole runs that store, by variant and case."""

    def run(self) -> None:
        """Stores, starts again and measures."""
        with Engines() as engines:
            for variant in STORING:
                self.facts = self._start(engines, variant, "store")
            self._store(engines)
            for variant in STORING:
                engines.close(variant)
        for variant in RESTORED:
            drop_cached(self._place / _folder(variant))
        with Engines() as engines:
            for variant in (NONE, *RESTORED):
                self._start(engines, variant, "restore")
            self._measure(engines, RUNS)
        self._check()

    def _start(self, engines: Engines, variant: str, part: str) -> dict[str, Any]:
        print(f"starting the engine: {variant}", file=sys.stderr, flush=True)
        settings = engine_settings(NONE, self._model, self._options)
        if variant != NONE:
            folder = self._place / _folder(variant)
            folder.mkdir(exist_ok=True)
            settings["kv_transfer_config"] = transfer_config(
                variant, folder, self._options.host_mib
            )
        log = self._place / f"{_folder(variant)}-{part}.log"
        return engines.start(variant, log, settings)

    def _store(self, engines: Engines) -> None:
        progress = Progress((1 + self._options.rounds) * len(self._cases))
        for turn, shift, case in self._turns():
            progress.step(f"storing, round {turn}: {case.label}")
            prompts = self._prompts(turn, case)
            for variant in rotated(list(STORING), shift):
                run = engines[variant].ask("run", prompts=prompts, decode=DECODE_TOKENS)
                if any(answer["cached_tokens"] for answer in run["answers"]):
                    raise RuntimeError(f"expected nothing of a new prompt, {variant} found some")
                if turn:
                    self.results.add(variant, case.label, COLD, run)
                    self.whole.setdefault((variant, case.label), []).append(1e3 * run["run_s"])
        progress.end()

    def _check(self) -> None:
        """Both must have restored what vLLM's local hit gives, and must have read it."""
        for case in self._cases:
            local = self.results.samples[NONE, case.label, LOCAL].cached
            for variant in RESTORED:
                found = self.results.samples[variant, case.label, DISK].external
                if found != local:
                    self.results.problems.append(
                        f"{case.label}: {variant} restored {spread(found)} tokens from disk; "
                        f"vLLM's local hit has {spread(local)}"
                    )
                if min(self.read[variant, case.label, DISK]) == 0:
                    self.results.problems.append(
                        f"{case.label}: {variant} read nothing from the device"
                    )

    def tables(self) -> None:
        print_table("time to first token, ms", self._first_token())
        print_table("restored from disk", self._restored())
        print_table("cold runs that store, ms", self._storing())

    def _first_token(self) -> Iterator[list[str]]:
        columns = [pair for parts in RUNS for pair in parts]
        yield [
            "prompt",
            *(f"{variant}: {phase}" for variant, phase in columns),
            "disk: ours / vLLM's",
            "host: ours / vLLM's",
            "cold / ours",
        ]
        for case in self._cases:
            times = [f"{statistics.median(self._ms(v, case, p)):.1f}" for v, p in columns]
            ours = self._ms(OURS, case, DISK)
            yield [
                case.label,
                *times,
                paired(ours, self._ms(RIVAL, case, DISK)),
                paired(self._ms(OURS, case, HOST), self._ms(RIVAL, case, HOST)),
                paired(self._ms(NONE, case, COLD), ours),
            ]

    def _restored(self) -> Iterator[list[str]]:
        yield ["prompt", "tokens", *(f"{variant}: MiB read" for variant in RESTORED)]
        for case in self._cases:
            tokens = self.results.samples[OURS, case.label, DISK].external
            read = [statistics.median(self.read[v, case.label, DISK]) / (1 << 20) for v in RESTORED]
            yield [case.label, spread(tokens), *(f"{mib:.1f}" for mib in read)]

    def _storing(self) -> Iterator[list[str]]:
        yield [
            "prompt",
            *(f"{variant}: {what}" for what in ("first token", "whole run") for variant in STORING),
            "first token: with disk / without",
            "whole run: with disk / without",
        ]
        for case in self._cases:
            first = {variant: self._ms(variant, case, COLD) for variant in STORING}
            whole = {variant: self.whole[variant, case.label] for variant in STORING}
            yield [
                case.label,
                *(
                    f"{statistics.median(times[v]):.1f}"
                    for times in (first, whole)
                    for v in STORING
                ),
                paired(first[OURS], first[DISKLESS]),
                paired(whole[OURS], whole[DISKLESS]),
            ]

    def as_json(self) -> dict[str, Any]:
        found = super().as_json()
        for run in found["runs"]:
            read = self.read.get((run["variant"], run["prompt"], DISK), [])
            run["device_bytes"] = read if run["phase"] == DISK else []
        found["storing"] = [
            {"variant": variant, "prompt": case, "whole_ms": [round(ms, 2) for ms in times]}
            for (variant, case), times in self.whole.items()
        ]
        return found


def _folder(variant: str) -> str:
    return variant.replace(",", "").replace(" ", "-")


def main() -> int:
    options = again.parse(__doc__)
    return again.run(options, lambda model, place: Bench(options, model, place))


if __name__ == "__main__":
    sys.exit(main())
