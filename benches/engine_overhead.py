"""Cost and savings of a connector on a real vLLM engine: hybrid-pages against vLLM's own.

Three engines of one tiny hybrid model (no connector, hybrid-pages, vLLM's OffloadingConnector with
the memcpy spec of rivals/) live at once, in processes of their own, and are driven in turn, prompt
by prompt: whatever else the machine does hits all of them. README.md says how to read the tables.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overhead.cold import measure_cold
from overhead.driver import MODEL_LENGTH, Case, EngineEnded, EngineProcess, measure
from overhead.report import as_json, print_tables, write_json
from overhead.samples import NONE, OURS, VARIANTS


def transfer_config(variant: str, host_mib: float) -> dict[str, Any]:
    """A connector's --kv-transfer-config; each connector gets the same budget."""
    if variant == OURS:
        name, extra = "HybridPagesConnector", {"host_gb": host_mib / 1024}
    else:
        name = "OffloadingConnector"
        extra = {
            "spec_name": "MemcpyOffloadingSpec",
            "spec_module_path": "memcpy_spec",
            "cpu_bytes_to_use": int(host_mib * (1 << 20)),
        }
    return {"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra}


def engine_settings(variant: str, model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of vLLM's LLM; they differ in the connector alone."""
    settings = {
        "model": str(model),
        "skip_tokenizer_init": True,
        "dtype": "bfloat16",
        "enforce_eager": True,
        "max_model_len": MODEL_LENGTH,
        "max_num_seqs": max(8, options.burst),
        "max_num_batched_tokens": 2048,
        "block_size": 32,
        "enable_prefix_caching": True,
        "mamba_cache_mode": "align",
        "disable_hybrid_kv_cache_manager": False,
        "disable_log_stats": False,
    }
    if variant != NONE:
        settings["kv_transfer_config"] = transfer_config(variant, options.host_mib)
    return settings


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--rounds", type=int, default=5, help="measured rounds, after one to warm up (5)")
    add("--cold-rounds", type=int, default=20, help="rounds of cold runs alone; 0: none (20)")
    add("--lengths", type=int, nargs="+", default=[512, 2048, 6144], help="of lone prompts, tokens")
    add("--burst", type=int, default=8, help="prompts of 1280 tokens sent together; 0: none (8)")
    add("--host-mib", type=int, default=256, help="budget of each connector (256)")
    add("--model", type=Path, help="a model's folder (the demo's tiny Qwen3.5)")
    add("--seed", type=int, default=0, help="of the prompts")
    add("--json", type=Path, metavar="FILE", help="write every sample there")
    add("--quick", action="store_true", help="two rounds of short prompts: does it work at all")
    add(
        "--variants",
        nargs="+",
        default=list(VARIANTS),
        choices=VARIANTS,
        metavar="NAME",
        help=f"engines to run: {', '.join(map(repr, VARIANTS))}",
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.lengths, options.burst = 2, [512, 1536], min(options.burst, 4)
        options.cold_rounds = min(options.cold_rounds, 2)
    longest = MODEL_LENGTH - 32
    if (
        options.rounds < 1
        or options.cold_rounds < 0
        or not all(64 <= length <= longest for length in options.lengths)
    ):
        parser.error(f"expected at least one round, and lengths from 64 to {longest} tokens")
    if not 0 <= options.burst <= 64 or options.host_mib < 16:
        parser.error("expected a burst of 0 to 64 prompts and a budget of at least 16 MiB")
    return options


def main() -> int:
    options = parse()
    model = options.model
    if model is None:
        from hybrid_pages.demo.models import ensure

        model = ensure("qwen3.5")
    cases = [Case(length) for length in options.lengths]
    if options.burst:
        cases.append(Case(1280, options.burst))
    variants = [name for name in VARIANTS if name in options.variants]

    logs = Path(tempfile.mkdtemp(prefix="engine-overhead-"))
    engines: dict[str, EngineProcess] = {}
    facts: dict[str, Any] = {}
    try:
        for variant in variants:
            print(f"starting the engine: {variant}", file=sys.stderr, flush=True)
            engines[variant] = EngineProcess(variant, logs / f"{variant.replace(' ', '-')}.log")
            settings = engine_settings(variant, model, options)
            facts = engines[variant].ask("start", settings=settings)
        results = measure(engines, cases, options.rounds, options.seed, facts["vocab"])
        cold = None
        if options.cold_rounds and NONE in engines:
            cold = measure_cold(engines, cases, options.cold_rounds, options.seed, facts["vocab"])
    except EngineEnded as error:
        print(error, file=sys.stderr)
        return 2
    finally:
        for engine in engines.values():
            engine.close()
    shutil.rmtree(logs)

    print(
        f"vLLM {facts['vllm']}, blocks of {facts['block_tokens']} tokens, "
        f"medians of {options.rounds} rounds"
    )
    print_tables(results, cold, variants, [case.label for case in cases])
    if options.json:
        shown = {
            name: getattr(options, name) for name in ("rounds", "cold_rounds", "seed", "host_mib")
        }
        write_json(options.json, as_json(results, cold, shown, facts))
    return 1 if results.problems else 0


if __name__ == "__main__":
    sys.exit(main())
