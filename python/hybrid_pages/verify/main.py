"""``hybrid-pages verify MODEL``."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import hybrid_pages
from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.arguments import require_named
from hybrid_pages.interrupts import ENDING, interruptible
from hybrid_pages.verify import output, prompts, questions
from hybrid_pages.verify.made import made
from hybrid_pages.verify.process import EngineFailed, EngineProcess
from hybrid_pages.verify.prompts import GivenPrompts
from hybrid_pages.verify.report import report
from hybrid_pages.verify.runs import EngineCommands, Runs, collect
from hybrid_pages.verify.tiers import EngineStart, folder_of
from hybrid_pages.verify.verdict import VerifyVerdict, judge, unfit_for

_SECRET = ("--api-key", "--hf-token")


def run(args: SimpleNamespace) -> int:
    """Verifies. Exit status 0 if everything restored is equal, 1 if something differs or nothing
    was restored, 2 if it could not run."""
    try:
        _check(args)
        given = None if args.prompts is None else prompts.read(args.prompts)
        asked = [] if args.questions is None else questions.read(args.questions)
        with interruptible(*ENDING):
            runs = _runs(args, given, asked)
        verdict = judge(runs)
        if args.plant:
            _require_told(runs, verdict, args.plant)
        found = report(
            runs,
            verdict,
            {
                "model": args.model,
                "flags": told(args.vllm),
                "hybrid_pages": hybrid_pages.__version__,
                "concurrency": args.concurrency,
                "plant": args.plant,
                "seed": args.seed,
            },
        )
        output.write(args, found)
    except KeyboardInterrupt:
        print("hybrid-pages verify: interrupted", file=sys.stderr)
        return 130
    except (HybridPagesError, OSError) as error:
        print(f"hybrid-pages verify: {error}", file=sys.stderr)
        return 2
    output.show_on_terminal(args, found)
    return 0 if verdict.good else 1


def told(flags: Sequence[str]) -> str:
    """The flags for a report, without secrets. vLLM takes shortened names of flags, too."""
    words, hidden = [], False
    for word in flags:
        name, equals, _ = word.partition("=")
        if name.startswith("-"):
            spelt = name.replace("_", "-")
            hidden = len(spelt) > 2 and any(each.startswith(spelt) for each in _SECRET)
            words.append(f"{name}=***" if hidden and equals else word)
        else:
            words.append("***" if hidden else word)
    return shlex.join(words)


def _check(args: SimpleNamespace) -> None:
    require_named("MODEL", args.model)
    if args.model.startswith("-"):
        raise SettingsError(f"expected MODEL before `--`, found {args.model!r}")
    if args.vllm[:1] and not args.vllm[0].startswith("-"):
        raise SettingsError(
            f"expected flags of `vllm serve` behind `--`, found {args.vllm[0]!r}: leave the "
            "command and its model out, as in `hybrid-pages verify MODEL -- --max-model-len 8192`"
        )
    output.check(args)
    if args.scratch is not None:
        if not args.scratch.is_dir():
            raise SettingsError(f"--scratch: expected a directory, found none: {args.scratch}")
        if not os.access(args.scratch, os.R_OK | os.W_OK | os.X_OK):
            raise SettingsError(
                f"--scratch: expected a directory to write in, found no permission to: "
                f"{args.scratch}"
            )
    if args.answer_tokens is not None and args.questions is None:
        raise SettingsError(
            f"--answer-tokens {args.answer_tokens}: expected --questions beside it, found none: "
            "--tokens is for other prompts"
        )


def _require_told(runs: Runs, verdict: VerifyVerdict, plant: str) -> None:
    """Checks that a bad verdict comes from the planted fault.

    Raises:
        EngineFailed: the verdict is bad for another reason.
        SettingsError: the fault can't show.
    """
    unfit = unfit_for(runs, plant)
    if unfit is not None:
        raise SettingsError(unfit)
    if not verdict.good and not verdict.differs:
        raise EngineFailed(f"--plant {plant}: nothing can be told: {'; '.join(verdict.problems)}")


def _runs(
    args: SimpleNamespace, given: list[GivenPrompts] | None, asked: list[questions.ScoredQuestion]
) -> Runs:
    scratch = "" if args.scratch is None else str(args.scratch.absolute())
    start = EngineStart(uuid.uuid4().hex[:12], scratch=scratch, plant=args.plant)
    left: set[Path] = set()
    with (
        _log() as log,
        Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=sys.stderr),
            transient=True,
            disable=args.verbose or not sys.stderr.isatty(),
        ) as bar,
    ):
        task = bar.add_task("")

        def say(text: str, *, quietly: bool = False) -> None:
            bar.update(task, description=text)
            if bar.disable and not quietly:
                print(text, file=sys.stderr, flush=True)

        @contextmanager
        def engines(start: EngineStart) -> Iterator[tuple[EngineCommands, dict[str, Any]]]:
            say(f"starting vLLM ({f'{start.alone} alone' if start.alone else 'every tier'})")
            process = EngineProcess(None if args.verbose else log, start.plant)
            try:
                arranged = process.arrange(args.model, args.vllm, start)
                left.update(_folders(arranged))
                facts = {**arranged, **process.start()}
                if not facts["block_tokens"]:
                    raise EngineFailed("the engine has no cache: see its log (--verbose)")
                yield process, facts
            except BaseException:
                process.kill()
                raise
            process.close()

        def step(what: str, done: int, count: int) -> None:
            # Without a terminal, about ten lines.
            tenth = done * 10 // count != (done - args.concurrency) * 10 // count
            say(f"{what}: {done} of {count} prompts" if count > 1 else what, quietly=not tenth)

        try:
            return collect(
                engines,
                lambda engine, facts: made(args, given, asked, engine, facts),
                start,
                at_once=args.concurrency,
                step=step,
            )
        finally:
            for folder in left:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _log() -> Iterator[IO[bytes]]:
    """A file for what the engines print. It is kept if it may explain a failure."""
    with tempfile.NamedTemporaryFile(
        prefix="hybrid-pages-verify-", suffix=".log", delete=False
    ) as log:
        kept = False
        try:
            yield log
        except EngineFailed as error:
            kept = error.by_log
            if not kept:
                raise
            raise EngineFailed(f"{error}\nall of it: {log.name}") from None
        finally:
            if not kept:
                Path(log.name).unlink(missing_ok=True)


def _folders(arranged: dict[str, Any]) -> Iterator[Path]:
    """Folders to remove at the end: those that verify's engines make on this machine.

    Raises:
        SettingsError: there is no place for the disk tier.
    """
    if arranged["disk"]:
        disk = Path(arranged["disk"])
        if not disk.parent.is_dir():
            raise SettingsError(
                f"disk_path: expected a directory that it can be made in, found none: {disk.parent}"
            )
        if not os.access(disk.parent, os.R_OK | os.W_OK | os.X_OK):
            raise SettingsError(
                f"--scratch: expected a directory for the disk tier's files, found no permission "
                f"to write in {disk.parent}, where disk_path is: name one on the same file system"
            )
        yield disk
    folder = folder_of(arranged["remote"]) if arranged["remote"] else None
    if folder is not None:
        with contextlib.suppress(FileExistsError):
            folder.parent.mkdir()
            folder = folder.parent
        yield folder
