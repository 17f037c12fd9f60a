"""``plan``, ``doctor``, ``verify`` and ``top``: for people who run ``vllm serve``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Optional

import typer

from hybrid_pages.arguments import one_of, positive, whole
from hybrid_pages.cli import info as installed
from hybrid_pages.cli.options import Json, read
from hybrid_pages.models.blocks import KERNEL_TOKENS
from hybrid_pages.models.choices import KV_DTYPES, SSM_DTYPES
from hybrid_pages.vllm.config.settings import PLANTS

_TOKENS = read(whole(1 << 30))


def _number(metavar: str, text: str, most: float) -> typer.models.OptionInfo:
    option = typer.Option(parser=read(positive(most)), metavar=metavar, help=text)
    assert isinstance(option, typer.models.OptionInfo)
    return option


def _one_of(words: list[str], text: str) -> typer.models.OptionInfo:
    option = typer.Option(
        parser=read(one_of(*words)),
        metavar="|".join(words),
        autocompletion=lambda: words,
        help=text,
    )
    assert isinstance(option, typer.models.OptionInfo)
    return option


def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model's folder, its config.json, or a name in the local hub cache.",
        ),
    ],
    as_json: Json = False,
    tp: Annotated[
        int,
        typer.Option(parser=read(whole(1024)), metavar="N", help="--tensor-parallel-size."),
    ] = 1,
    pp: Annotated[
        int,
        typer.Option(
            "--pp",
            "--pipeline-parallel-size",
            parser=read(whole(1024)),
            metavar="N",
            help="--pipeline-parallel-size. VLLM_PP_LAYER_PARTITION counts as in vLLM.",
        ),
    ] = 1,
    nodes: Annotated[
        int,
        typer.Option(
            parser=read(whole(1024)),
            metavar="N",
            help="Nodes over which the ranks of an engine core are spread (--nnodes).",
        ),
    ] = 1,
    dtype: Annotated[str, _one_of(["auto", "bfloat16", "float16", "float32"], "--dtype.")] = "auto",
    kv_dtype: Annotated[str, _one_of(list(KV_DTYPES), "--kv-cache-dtype.")] = "auto",
    ssm_dtype: Annotated[str, _one_of(list(SSM_DTYPES), "--mamba-ssm-cache-dtype.")] = "auto",
    device: Annotated[
        str, _one_of(list(KERNEL_TOKENS), "Whose attention kernels: they align blocks.")
    ] = "cuda",
    block_size: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(parser=_TOKENS, metavar="TOKENS", help="--block-size; default vLLM's."),
    ] = None,
    drafts: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=read(whole(1024)),
            metavar="N",
            help="num_speculative_tokens of --speculative-config: states get wider.",
        ),
    ] = None,
    exports: Annotated[
        bool,
        typer.Option(
            "--exports",
            help="For kernels that export states from inside a step: FlashInfer's for Gated "
            "DeltaNet (vLLM 0.33's choice on Hopper), FlashKDA.",
        ),
    ] = False,
    host_gb: Annotated[
        Optional[float],  # noqa: UP045
        _number("GIB", "Host memory: what fits in it.", 1 << 20),
    ] = None,
    disk_gb: Annotated[
        Optional[float],  # noqa: UP045
        _number("GIB", "Disk: what fits on it.", 1 << 20),
    ] = None,
    conversation: Annotated[
        int, typer.Option(parser=_TOKENS, metavar="TOKENS", help="Length of a conversation.")
    ] = 16384,
    turns: Annotated[
        int, typer.Option(parser=read(whole(10_000)), metavar="N", help="Its turns.")
    ] = 8,
    active_params: Annotated[
        Optional[float],  # noqa: UP045
        _number("BILLIONS", "Parameters that a token passes: for the break-even.", 1e6),
    ] = None,
    tflops: Annotated[
        Optional[float],  # noqa: UP045
        _number("TFLOPS", "What all ranks reach in a prefill: for the break-even.", 1e6),
    ] = None,
    gb_per_s: Annotated[
        Optional[float],  # noqa: UP045
        _number("GB/S", "From host memory to all ranks: for the break-even.", 1e6),
    ] = None,
    revision: Annotated[str, typer.Option(metavar="NAME", help="Of a hub name.")] = "main",
    plot: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Draw memory over length (.png, .pdf, .svg)."),
    ] = None,
) -> int:
    """Say what a model's pages and checkpoints take, and what fits, before an engine runs.

    Needs no GPU, torch or vLLM: it reads the model's config.json.
    """
    from hybrid_pages.plan.main import run

    return run(SimpleNamespace(**{**locals(), "json": as_json}))


def doctor(
    words: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[-- vllm serve ...]", help="The command line to look at."),
    ] = None,
    as_json: Json = False,
    url: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="URL", help="An engine that runs, such as http://localhost:8000."),
    ] = None,
) -> int:
    """Say what silently costs hits or safety, and how to fix it.

    Looks at a command line without running it, or at an engine's metrics. Exit status 1 for
    findings, 2 if there is nothing to look at.
    """
    if (url is None) == (not words):
        raise typer.BadParameter("expected --url URL, or `-- vllm serve ...`, and not both")
    from hybrid_pages.doctor.main import run

    return run(SimpleNamespace(words=words or [], url=url, json=as_json, vllm=installed.trouble()))


def verify(
    model: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(
            metavar="MODEL",
            help="A model, as `vllm serve` takes it; with --url the name of a served model or "
            "adapter, by default the first.",
        ),
    ] = None,
    vllm: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[-- FLAG...]", help="Your flags of `vllm serve`."),
    ] = None,
    as_json: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--json", metavar="FILE", help="Write a report in JSON; - prints it."),
    ] = None,
    markdown: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Write a report in Markdown; - prints it."),
    ] = None,
    prompts: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FILE",
            help="Prompts, one a line; in .jsonl objects with `prompt` or `prompt_token_ids`. "
            "Default: built-in ones.",
        ),
    ] = None,
    questions: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(metavar="FILE", help="Questions to score, in gsm8k's format (.jsonl)."),
    ] = None,
    tokens: Annotated[
        int, typer.Option(parser=_TOKENS, metavar="N", help="Tokens of an answer.")
    ] = 16,
    answer_tokens: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=_TOKENS,
            metavar="N",
            help="Of an answer to one of --questions, at most. Default: 256.",
        ),
    ] = None,
    concurrency: Annotated[
        int,
        typer.Option(
            parser=read(whole(4096)),
            metavar="N",
            help="Prompts sent at once. With more than one, rounding differs from run to run.",
        ),
    ] = 1,
    seed: Annotated[
        int, typer.Option(parser=_TOKENS, metavar="N", help="Of the built-in prompts.")
    ] = 1,
    scratch: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="DIR", help="For the files of the disk tier. Default: where disk_path is."
        ),
    ] = None,
    plant: Annotated[
        Optional[str],  # noqa: UP045
        _one_of(list(PLANTS), "Spoil what is restored, to see that verify can fail."),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the engine's output.")] = False,
    url: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="URL", help="Verify the engine that serves there, and start none of its own."
        ),
    ] = None,
    timeout: Annotated[
        Optional[float],  # noqa: UP045
        _number("SECONDS", "With --url, for all answers together. Default: 600.", 86_400),
    ] = None,
    metrics: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            metavar="FILE", help="With --url, write the result in Prometheus' text format."
        ),
    ] = None,
) -> int:
    """Compare what is restored with what the engine computes itself, on your model and flags.

    Runs prompts cold, on vLLM's own prefix hit, and restored from each tier that is set. Exit
    status 1 if something differs or nothing was restored, 2 if it could not run. With --url, 2 also
    if it could not tell, and 3 if another run is under way or the engine is too busy.
    """
    of_own = {
        "questions": questions,
        "answer-tokens": answer_tokens,
        "scratch": scratch,
        "plant": plant,
        "concurrency": concurrency != 1,
        "verbose": verbose,
    }
    if url is not None:
        given = [f"--{name}" for name, value in of_own.items() if value]
        if given or vllm or (model or "").startswith("-"):
            raise typer.BadParameter(
                f"with --url, expected none of {', '.join(given) or '-- FLAG...'}: no engine is "
                "started"
            )
        from hybrid_pages.verify.serving_main import run as run_serving

        return run_serving(
            SimpleNamespace(**{**locals(), "json": as_json, "timeout": timeout or 600.0})
        )
    if model is None:
        raise typer.BadParameter("expected MODEL, or --url URL, found neither")
    if timeout is not None or metrics is not None:
        raise typer.BadParameter("expected --url beside --timeout and --metrics, found none")
    if not installed.engine_fits("verify"):
        return 2
    from hybrid_pages.verify.main import run

    return run(
        SimpleNamespace(**{**locals(), "json": as_json, "vllm": vllm or [], "plant": plant or ""})
    )


def top(
    url: Annotated[
        str,
        typer.Option(metavar="URL", help="The address that `vllm serve` listens on."),
    ] = "http://localhost:8000",
    once: Annotated[
        bool, typer.Option("--once", help="Show all since the start, and end.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print an object: with --once one, else one per interval."),
    ] = False,
    interval: Annotated[float, _number("SECONDS", "Between two looks.", 3600)] = 2.0,
) -> int:
    """Show an engine live: hits by source, missing states, room, copies, failures.

    Works over ssh. Ctrl-C ends it.
    """
    from hybrid_pages.top.main import run

    return run(SimpleNamespace(url=url, once=once, json=as_json, interval=interval))
