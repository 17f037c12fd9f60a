"""Time to first token of prompts restored from host, disk, a shared directory, S3 and Mooncake.

Engines of one tiny hybrid model store prompts: one to a disk and a directory that engines share,
one to a real S3 server on loopback, one to a real Mooncake Store there. They end; then engines that
have only one of these tiers, and one without a connector, run each prompt in turn, each time from
another one on. Mooncake is left out where it is not installed or the network is not loopback alone;
`make bench-remote` sees to both. README.md says how to read the table.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_overhead import engine_settings
from overhead import again
from overhead.again import Engines, drop_cached
from overhead.driver import DECODE_TOKENS, Progress
from overhead.report import print_table
from overhead.s3_server import s3_server
from overhead.samples import COLD, LOCAL, NONE, paired, spread

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "mooncake"))
from real_mooncake import MASTER, Store, why_not

HOST, DISK, DIRECTORY, S3, MOONCAKE = "host", "disk", "directory", "S3", "Mooncake"


@contextlib.contextmanager
def mooncake(place: Path) -> Iterator[dict[str, str]]:
    """A real Mooncake Store on loopback by its name, if there can be one."""
    if reason := why_not():
        print(f"without Mooncake: {reason}", file=sys.stderr, flush=True)
        yield {}
        return
    os.environ["VLLM_HOST_IP"] = "127.0.0.1"
    with Store(place) as store:
        store.add(1 << 30)
        yield {MOONCAKE: f"mooncake://{MASTER}"}


class Bench(again.Bench):
    """Every tier.

    stores: where each remote store is, by its name.
    """

    name = "remote"

    def __init__(
        self, options: argparse.Namespace, model: Path, place: Path, stores: dict[str, str]
    ) -> None:
        super().__init__(options, model, place)
        self._tiers = (DISK, *stores)
        disk = {"disk_path": str(place / "disk"), "disk_gb": 4}
        remote = {"remote_admit": "all", "remote_deadline_ms": 60_000}
        self._settings: dict[str, dict[str, Any]] = {
            NONE: {},
            DISK: disk,
            **{name: {**remote, "remote_url": url} for name, url in stores.items()},
        }

    def run(self) -> None:
        """Stores, starts again and measures."""
        with Engines() as engines:
            both = self._settings[DISK] | self._settings[DIRECTORY]
            others = {tier: self._settings[tier] for tier in self._tiers[2:]}
            for variant, extra in {"disk and directory": both, **others}.items():
                self.facts = self._start(engines, variant, extra)
                progress = Progress((1 + self._options.rounds) * len(self._cases))
                for turn, _, case in self._turns():
                    progress.step(f"storing, {variant}, round {turn}: {case.label}")
                    prompts = self._prompts(turn, case)
                    engines[variant].ask("run", prompts=prompts, decode=DECODE_TOKENS)
                progress.end()
                engines.close(variant)
        drop_cached(self._place)
        with Engines() as engines:
            for variant, extra in self._settings.items():
                self._start(engines, variant, extra)
            first = [(NONE, COLD), *((tier, tier) for tier in self._tiers)]
            second = [(NONE, LOCAL), *((tier, HOST) for tier in self._tiers)]
            self._measure(engines, (first, second))
        self._check()

    def _start(self, engines: Engines, variant: str, extra: dict[str, Any]) -> dict[str, Any]:
        print(f"starting the engine: {variant}", file=sys.stderr, flush=True)
        settings = engine_settings(NONE, self._model, self._options)
        if extra:
            extra = {"host_gb": self._options.host_mib / 1024, **extra}
            settings["kv_transfer_config"] = {
                "kv_connector": "HybridPagesConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": extra,
            }
        log = self._place / f"{variant.replace(' ', '-')}.log"
        facts: dict[str, Any] = engines.start(variant, log, settings)
        if "remote_url" in extra:
            engines[variant].ask("ready")
        return facts

    def _check(self) -> None:
        """Each tier must have given what vLLM's local hit has."""
        for case in self._cases:
            local = self.results.samples[NONE, case.label, LOCAL].cached
            for tier in self._tiers:
                found = self.results.samples[tier, case.label, tier].external
                if found != local:
                    self.results.problems.append(
                        f"{case.label}: {spread(found)} tokens restored from {tier}; vLLM's local "
                        f"hit has {spread(local)}"
                    )

    def tables(self) -> None:
        tiers = self._tiers
        columns = [(NONE, COLD), (NONE, LOCAL), (DISK, HOST), *((tier, tier) for tier in tiers)]
        rows = [["prompt", *(phase for _, phase in columns), *(f"cold / {t}" for t in tiers)]]
        for case in self._cases:
            cold = self._ms(NONE, case, COLD)
            rows.append(
                [
                    case.label,
                    *(f"{statistics.median(self._ms(v, case, p)):.1f}" for v, p in columns),
                    *(paired(cold, self._ms(tier, case, tier)) for tier in tiers),
                ]
            )
        print_table("time to first token, ms", iter(rows))


def main() -> int:
    options = again.parse(__doc__)
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="remote-ttft-")))
        stores = {S3: stack.enter_context(s3_server())} | stack.enter_context(mooncake(place))

        def make(model: Path, folder: Path) -> Bench:
            shared = {DIRECTORY: f"file://{folder / 'shared'}"}
            return Bench(options, model, folder, shared | stores)

        return again.run(options, make)


if __name__ == "__main__":
    sys.exit(main())
