"""A model of real size on a real vLLM engine: prompts cold, from vLLM's own cache, restored from
host memory and, after a restart, from a disk; and answers that go on from their middle.

The model has the geometry of Qwen3.5-0.8B: its layers, heads, states and vocabulary, and blocks of
544 tokens. Its weights are random and made here. Each restored run must equal vLLM's local hit bit
for bit and move as many bytes as `hybrid-pages plan` says; README.md says how to read the tables.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from overhead.again import Engines, drop_cached
from overhead.driver import FIRST_TOKEN, MODEL_LENGTH, EngineEnded, EngineProcess
from overhead.report import machine, print_table, write_json
from overhead.samples import COLD, LOCAL

CONFIG = Path(__file__).parents[1] / "docs" / "models" / "configs" / "qwen3.5-0.8b.json"
# What that file leaves out, since no size of a page or state depends on it.
OTHER_SIZES = {"vocab_size": 248320, "intermediate_size": 3584, "tie_word_embeddings": True}
# On a CPU vLLM begins with blocks of 128 tokens and comes to 640; from 32 it comes to 544, as on a
# GPU from 16.
BLOCK_SIZE = 32
HOST, DISK, INSIDE = "host", "disk", "inside a block"
PHASES = (COLD, LOCAL, HOST, DISK, INSIDE)
DECODE_TOKENS = 16
HALF = DECODE_TOKENS // 2


def make_model(folder: Path) -> None:
    """Writes a model of that geometry whose random weights remember, in bfloat16."""
    import torch
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    from hybrid_pages.demo.models import remember

    sizes = json.loads(CONFIG.read_text())["text_config"] | OTHER_SIZES
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        try:
            model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**sizes))
            remember(model)
        finally:
            torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    file = folder / "config.json"
    config = json.loads(file.read_text()) | {"architectures": ["Qwen3_5ForCausalLM"]}
    file.write_text(json.dumps(config | {"mamba_ssm_dtype": sizes["mamba_ssm_dtype"]}, indent=1))


def planned() -> dict[str, Any]:
    """What `hybrid-pages plan` says of the model."""
    command = [sys.executable, "-m", "hybrid_pages", "plan", str(CONFIG), "--json"]
    command += ["--device", "cpu", "--block-size", str(BLOCK_SIZE)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class RealSize:
    """The runs of each prompt, by phase, and what is wrong with them."""

    def __init__(self, options: argparse.Namespace, model: Path, place: Path) -> None:
        self._options, self._model, self._place = options, model, place
        self.plan = planned()
        self.facts: dict[str, Any] = {}
        self.runs: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
        """By length and round."""
        self._whole: dict[tuple[int, int], dict[str, Any]] = {}
        self.problems: list[str] = []
        self.control = 0.0

    def run(self) -> None:
        """Stores, measures, starts again and measures what the disk has."""
        (self._place / "disk").mkdir()
        with Engines() as engines:
            self._start(engines, "store")
            for key in self._keys():
                self._run(engines, key, COLD, stored=True)
                self._run(engines, key, LOCAL)
                self._run(engines, key, HOST)
            self._control(engines)
            engines.close("store")
        drop_cached(self._place / "disk")
        with Engines() as engines:
            self._start(engines, "restart")
            for key in self._keys():
                self._run(engines, key, DISK)
                self._go_on(engines, key)
            engines.close("restart")
        for key, runs in self.runs.items():
            self._check(key, runs)

    def _keys(self) -> Iterator[tuple[int, int]]:
        for turn in range(self._options.rounds):
            for length in self._options.lengths:
                yield length, turn

    def _start(self, engines: Engines, name: str) -> None:
        print(f"starting an engine ({name})", file=sys.stderr, flush=True)
        extra = {
            "host_gb": self._options.host_gb,
            "disk_path": str(self._place / "disk"),
            "disk_gb": self._options.disk_gb,
        }
        settings = {
            "model": str(self._model),
            "skip_tokenizer_init": True,
            "dtype": "bfloat16",
            "enforce_eager": True,
            "max_model_len": MODEL_LENGTH,
            "max_num_seqs": 2,
            "max_num_batched_tokens": 2048,
            "block_size": BLOCK_SIZE,
            "enable_prefix_caching": True,
            "disable_log_stats": False,
            "kv_transfer_config": {
                "kv_connector": "HybridPagesConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": extra,
            },
        }
        self.facts = engines.start(name, self._place / f"{name}.log", settings)
        if self.facts["block_tokens"] != self.plan["block_tokens"]:
            self.problems.append(
                f"vLLM has blocks of {self.facts['block_tokens']} tokens, `hybrid-pages plan` says "
                f"{self.plan['block_tokens']}"
            )
        # What only the first steps pay for; no block of it is whole.
        warm_up = self._prompt("warm-up", self.plan["block_tokens"] - 4)
        engines[name].ask("run", prompts=[warm_up], decode=2)

    def _prompt(self, seed: str, length: int) -> list[int]:
        rng = random.Random(f"real size {self._options.seed} {seed}")
        vocab = OTHER_SIZES["vocab_size"]
        return [rng.randrange(FIRST_TOKEN, vocab) for _ in range(length)]

    def _run(
        self, engines: Engines, key: tuple[int, int], phase: str, *, stored: bool = False
    ) -> None:
        """Runs a prompt whose first blocks are where the phase says."""
        if phase != LOCAL:
            _only(engines).ask("reset_local")
        prompt = self._prompt(str(key), key[0])
        self._keep(engines, key, phase, prompt, decode=DECODE_TOKENS, stored=stored)

    def _go_on(self, engines: Engines, key: tuple[int, int]) -> None:
        """Answers a prompt halfway and wholly, and goes on from the state at the first end."""
        prompt, ask = self._prompt(str(key), key[0]), _only(engines).ask
        half, whole = (
            ask("run", prompts=[prompt], decode=count, stored=stored)["answers"][0]
            for count, stored in ((HALF, True), (DECODE_TOKENS, False))
        )
        self._whole[key] = whole
        ask("reset_local")
        longer = prompt + half["tokens"]
        self._keep(engines, key, INSIDE, longer, decode=HALF, stored=False)

    def _keep(
        self, engines: Engines, key: tuple[int, int], phase: str, prompt: list[int], **how: Any
    ) -> None:
        print(f"{key[0]} tokens, round {1 + key[1]}: {phase}", file=sys.stderr, flush=True)
        engine = _only(engines)
        before, read = engine.ask("counters"), engine.device_read()
        run = engine.ask("run", prompts=[prompt], **how)
        after, read = engine.ask("counters"), engine.device_read() - read
        moved = {name: int(after[name] - before.get(name, 0)) for name in after}
        found = run["answers"][0] | {"moved": moved, "device_bytes": read}
        self.runs.setdefault(key, {})[phase] = found

    def _control(self, engines: Engines) -> None:
        """Another token near the beginning must change what is said behind the blocks that have
        it: else no comparison would notice wrong bytes."""
        length = min(self._options.lengths)
        prompt = self._prompt(str((length, 0)), length)
        prompt[10] ^= 1
        how = {"prompts": [prompt], "decode": DECODE_TOKENS, "stored": False}
        (other,) = [_only(engines).ask("run", **how)["answers"][0] for _ in range(2)][1:]
        same = self.runs[length, 0][LOCAL]
        if other["cached_tokens"] != same["cached_tokens"]:
            self.problems.append("the control did not resume where the prompt did")
        pairs = zip(other["logprobs"], same["logprobs"], strict=True)
        self.control = max(abs(a - b) for a, b in pairs)
        """How far the log-probabilities of the first token and those behind it move."""
        if self.control == 0:
            self.problems.append("another token before the last block changes no probability")

    def _check(self, key: tuple[int, int], runs: Mapping[str, Mapping[str, Any]]) -> None:
        def problem(phase: str, text: str) -> None:
            self.problems.append(f"{key[0]} tokens, round {1 + key[1]}, {phase}: {text}")

        local = runs[LOCAL]
        block, page = self.plan["block_tokens"], self.plan["page_bytes"]
        blocks = (key[0] - 1) // block
        expected = blocks * page + self.plan["checkpoint_bytes"]
        if local["cached_tokens"] != blocks * block or local["external_tokens"]:
            problem(
                LOCAL,
                f"resumed at {local['cached_tokens']}, of which {local['external_tokens']} were "
                f"restored; expected {blocks * block} of vLLM's own cache",
            )
        rest = {name: self._whole[key][name][HALF:] for name in ("tokens", "logprobs")}
        for phase, depth, answer, size in (
            (HOST, blocks * block, local, expected),
            (DISK, blocks * block, local, expected),
            (INSIDE, key[0] + HALF - 1, rest, None),
        ):
            run = runs[phase]
            if (far := distance(run, answer)) > 0:
                problem(phase, f"differs by {far:g} in log-probability")
            if run["external_tokens"] != depth:
                problem(phase, f"restored {run['external_tokens']} tokens, expected {depth}")
            if size is not None and loaded(run) != size:
                problem(phase, f"loaded {loaded(run)} bytes; `hybrid-pages plan` says {size}")
        if runs[DISK]["device_bytes"] < expected:
            problem(DISK, f"read {runs[DISK]['device_bytes']} bytes from the device")

    def tables(self) -> dict[str, list[list[str]]]:
        """What was measured, by title."""
        times: list[list[str]] = [["prompt", *PHASES, "cold / host", "cold / disk"]]
        moved: list[list[str]] = [["prompt", "restored", "blocks", "loaded", "read from the disk"]]
        for length in self._options.lengths:
            rounds = [runs for (of, _), runs in self.runs.items() if of == length]
            first = {p: [1e3 * runs[p]["ttft_s"] for runs in rounds] for p in PHASES}
            times.append(
                [
                    f"{length:,}",
                    *(f"{statistics.median(first[phase]):,.0f}" for phase in PHASES),
                    *(
                        f"{statistics.median(map(_ratio, first[COLD], first[phase])):.1f}"
                        for phase in (HOST, DISK)
                    ),
                ]
            )
            run = rounds[0][DISK]
            moved.append(
                [
                    f"{length:,}",
                    f"{run['external_tokens']:,} tokens",
                    f"{run['external_tokens'] // self.plan['block_tokens']}",
                    *(f"{size / (1 << 20):.2f} MiB" for size in (loaded(run), run["device_bytes"])),
                ]
            )
        return {"time to first token, ms": times, "bytes": moved}

    def noise(self) -> float:
        """How far cold runs are from local hits: their steps are others."""
        return max(distance(runs[COLD], runs[LOCAL]) for runs in self.runs.values())

    def as_json(self) -> dict[str, Any]:
        """Every run."""
        return {
            "date": datetime.date.today().isoformat(),
            "machine": machine(),
            "engine": self.facts,
            "plan": {n: self.plan[n] for n in ("block_tokens", "page_bytes", "checkpoint_bytes")},
            "options": {"rounds": self._options.rounds, "seed": self._options.seed},
            "control": self.control,
            "problems": self.problems,
            "runs": [
                {
                    "prompt": length,
                    "round": 1 + turn,
                    "phase": phase,
                    "ttft_ms": round(1e3 * run["ttft_s"], 1),
                    "resumed_at": run["cached_tokens"],
                    "external": run["external_tokens"],
                    "loaded_bytes": loaded(run),
                    "device_bytes": run["device_bytes"],
                    "chunks": run["chunks"],
                    "tokens": run["tokens"],
                    "logprobs": run["logprobs"],
                }
                for (length, turn), runs in self.runs.items()
                for phase, run in runs.items()
            ],
        }


def _only(engines: Engines) -> EngineProcess:
    (engine,) = engines.values()
    return engine


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The largest |delta log-probability| of two answers, infinite if their texts differ."""
    if one["tokens"] != other["tokens"]:
        return float("inf")
    return max(abs(a - b) for a, b in zip(one["logprobs"], other["logprobs"], strict=True))


def loaded(run: Mapping[str, Any]) -> int:
    """Bytes that were copied into the engine."""
    return sum(size for name, size in run["moved"].items() if name.startswith("loaded_bytes:"))


def _ratio(one: float, other: float) -> float:
    return one / other


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="prompts of each length (3)")
    lengths = [1024, 2048, 3072, 4096, 5120]
    add("--lengths", type=int, nargs="+", default=lengths, help="tokens (1024 to 5120)")
    add("--host-gb", type=float, default=2.0, help="host memory of the cache (2)")
    add("--disk-gb", type=float, default=4.0, help="room on the disk (4)")
    add("--disk", type=Path, help="an existing folder (the system's for temporary files)")
    add("--seed", type=int, default=0, help="of the prompts")
    add("--json", type=Path, metavar="FILE", help="write every run there")
    options = parser.parse_args(arguments)
    block = planned()["block_tokens"]
    if options.rounds < 1 or not all(block < n <= MODEL_LENGTH - 32 for n in options.lengths):
        parser.error(
            f"expected at least one round, and lengths from {block + 1} to {MODEL_LENGTH - 32}"
        )
    return options


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="real-size-", dir=options.disk) as folder:
        place = Path(folder)
        print("making the model (1.5 GB)", file=sys.stderr, flush=True)
        make_model(place / "model")
        bench = RealSize(options, place / "model", place)
        try:
            bench.run()
        except EngineEnded as error:
            print(error, file=sys.stderr)
            return 2
    for title, rows in bench.tables().items():
        print_table(title, rows)
    print(
        f"\nvLLM {bench.facts['vllm']}, blocks of {bench.facts['block_tokens']} tokens. "
        f"{3 * len(bench.runs)} restored runs were compared with vLLM's local hits; "
        f"cold runs are {bench.noise():g} from them, the control {bench.control:g}"
    )
    for problem in bench.problems:
        print(f"PROBLEM {problem}")
    if options.json:
        write_json(options.json, bench.as_json())
    if report := os.environ.get("HYBRID_PAGES_PROVE"):
        figures = {"restored runs": 3 * len(bench.runs), "problems": len(bench.problems)}
        with Path(report).open("a") as lines:
            print(json.dumps({"figures": figures}), file=lines)
    return 1 if bench.problems else 0


if __name__ == "__main__":
    sys.exit(main())
