"""Time to first token with Hugging Face transformers: a restored prefix against a cold prompt.

A hybrid model (Gated DeltaNet and full attention, Qwen3.5) with random weights, large enough that a
prompt takes a visible time on a CPU. For each length a new prompt is generated from cold by the
model alone, then through `PrefixCache` for the first time (it stores) and again (it restores). Only
the first token is asked for. Texts have to be equal, or the bench fails. Runs on a GPU with
`--device cuda`. `--look` measures instead what one look at the model costs, before each call and
each store.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers

from hybrid_pages.transformers import PrefixCache, structure

PHASES = ("cold", "stored", "restored")


def make_model(layers: int, hidden: int, device: str) -> torch.nn.Module:
    """Three quarters Gated DeltaNet, one quarter full attention, as in Qwen3.5."""
    torch.manual_seed(0)
    config = transformers.Qwen3_5TextConfig(
        vocab_size=4096,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=2,
        head_dim=64,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        linear_num_key_heads=hidden // 128,
        linear_num_value_heads=hidden // 64,
        max_position_embeddings=32768,
        eos_token_id=None,
        pad_token_id=None,
        bos_token_id=1,
    )
    return transformers.Qwen3_5ForCausalLM(config).eval().to(device)


def timed(call: Callable[..., torch.Tensor], ids: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Milliseconds until the first token is there, and the text."""
    start = time.perf_counter()
    text = call(ids, max_new_tokens=1, do_sample=False)
    if ids.device.type == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start), text


def measure(cache: PrefixCache, length: int, rounds: int) -> dict[str, Any]:
    """Median milliseconds of each phase at one prompt length; the first round warms up."""
    samples: dict[str, list[float]] = {phase: [] for phase in PHASES}
    restored = 0
    for number in range(rounds + 1):
        generator = torch.Generator().manual_seed(1000 * length + number)
        ids = torch.randint(3, 4096, (1, length), generator=generator).to(cache.model.device)
        texts = []
        before = cache.stats().restored_tokens
        for phase, call in zip(
            PHASES, (cache.model.generate, cache.generate, cache.generate), strict=True
        ):
            duration, text = timed(call, ids)
            texts.append(text)
            if number:
                samples[phase].append(duration)
        if not all(torch.equal(texts[0], text) for text in texts):
            raise SystemExit(f"texts differ at {length} tokens")
        restored = cache.stats().restored_tokens - before
        cache.clear()
    medians = {phase: statistics.median(times) for phase, times in samples.items()}
    return {"tokens": length, "restored_tokens": restored, **medians}


def look_cost(layers: int, device: str, rounds: int = 50) -> dict[str, float]:
    """Least milliseconds of one look at a model of small tensors, and of the sampling in it."""
    cache = PrefixCache(make_model(layers, 128, device), host_gb=0.25)
    watch = cache._watch
    found = structure.describe(cache.model)
    figures = {"tensors": float(len(found.tensors)), "modules": float(len(found.modules))}
    for name, call in (("look", watch.look), ("sample", lambda: watch._read(found))):
        times = []
        for _ in range(rounds):
            start = time.perf_counter()
            call()
            times.append(1000 * (time.perf_counter() - start))
        figures[name] = min(times)
    cache.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    parser.add_argument("--look", action="store_true", help="measure one look at 36 layers")
    options = parser.parse_args()
    if options.look:
        found = look_cost(36, options.device)
        print(
            f"{found['tensors']:.0f} tensors in {found['modules']:.0f} modules: one look "
            f"{found['look']:.1f} ms, of which {found['sample']:.1f} ms read the samples"
        )
        return
    model = make_model(options.layers, options.hidden, options.device)
    rows = []
    print("| tokens | restored | cold ms | stored ms | restored ms | cold / restored |")
    print("|---|---|---|---|---|---|")
    with PrefixCache(model, host_gb=2) as cache:
        for length in options.lengths:
            row = measure(cache, length, options.rounds)
            rows.append(row)
            print(
                f"| {row['tokens']} | {row['restored_tokens']} | {row['cold']:.0f} "
                f"| {row['stored']:.0f} | {row['restored']:.0f} "
                f"| {row['cold'] / row['restored']:.1f} |",
                flush=True,
            )
    if options.json:
        figures = {
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
            "device": options.device,
            "threads": torch.get_num_threads(),
            "layers": options.layers,
            "hidden": options.hidden,
            "rounds": options.rounds,
            "milliseconds": rows,
        }
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
