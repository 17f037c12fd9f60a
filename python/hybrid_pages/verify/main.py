"""``hybrid-pages verify MODEL``."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
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
from hybrid_pages.verify import prompts, questions
from hybrid_pages.verify.process import EngineFailed, EngineProcess
from hybrid_pages.verify.prompts import GivenPrompts, VerifyPrompt
from hybrid_pages.verify.report import as_json, markdown, report, show
from hybrid_pages.verify.runs import EngineCommands, Runs, collect
from hybrid_pages.verify.tiers import EngineStart, folder_of
from hybrid_pages.verify.verdict import VerifyVerdict, judge, unfit_for

_LEAST_COLUMNS = 120
_ANSWER_TOKENS = 256
_SECRET = ("--api-key", "--hf-token")
_ENDING = (signal.SIGTERM, signal.SIGHUP)


def run(args: SimpleNamespace) -> int:
    """Verifies. Exit status 0 if everything restored is equal, 1 if something differs or nothing
    was restored, 2 if it could not run."""
    try:
        _check(args)
        given = None if args.prompts is None else prompts.read(args.prompts)
        asked = [] if args.questions is None else questions.read(args.questions)
        with _interruptible():
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
        for path, text in ((args.json, as_json(found)), (args.markdown, markdown(found))):
            if path is not None and str(path) != "-":
                path.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")
    except KeyboardInterrupt:
        print("hybrid-pages verify: interrupted", file=sys.stderr)
        return 130
    except (HybridPagesError, OSError) as error:
        print(f"hybrid-pages verify: {error}", file=sys.stderr)
        return 2
    if str(args.json) == "-":
        print(as_json(found))
    elif str(args.markdown) == "-":
        print(markdown(found), end="")
    else:
        console = Console(highlight=False)
        # A pipe or a log has no width.
        wide = console if console.is_terminal else Console(width=_LEAST_COLUMNS, highlight=False)
        show(found, wide)
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
    if str(args.json) == "-" and str(args.markdown) == "-":
        raise SettingsError("expected one report on standard output, found two: name a file")
    for name in ("json", "markdown"):
        path = getattr(args, name)
        if path is not None and str(path) != "-":
            _require_writable(f"--{name}", path.absolute())
    if args.json is not None and args.json == args.markdown:
        raise SettingsError(f"expected a file for each report, found one for both: {args.json}")
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


def _require_writable(option: str, path: Path) -> None:
    """Rejects a file that can't be written, before engines run whose results would be lost."""
    if not path.parent.is_dir():
        raise SettingsError(f"{option}: expected a directory to write in, found none: {path}")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise SettingsError(f"{option}: expected a file that can be written, found {path}")


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


def made(
    args: SimpleNamespace,
    given: list[GivenPrompts] | None,
    asked: list[questions.ScoredQuestion],
    engine: EngineCommands,
    facts: dict[str, Any],
) -> list[VerifyPrompt]:
    """The prompts that an engine gets.

    Raises:
        SettingsError: a prompt that the engine does not take; names it.
    """
    found = [
        VerifyPrompt(each.name, _fitting(each, tokens, args.tokens, facts), args.tokens)
        for each, tokens in _encoded(given, args.seed, args.tokens, engine, facts)
    ]
    return found + _questions(asked, args.answer_tokens or _ANSWER_TOKENS, engine, facts)


def _encoded(
    given: list[GivenPrompts] | None,
    seed: int,
    answer: int,
    engine: EngineCommands,
    facts: dict[str, Any],
) -> list[tuple[GivenPrompts, tuple[int, ...]]]:
    if given is None:
        given = _built_in(seed, answer, engine, facts)
    texts = [each.text for each in given if each.text is not None]
    encoded = iter(engine.ask("encode", texts=texts)["tokens"] if texts else ())
    return [(each, each.tokens if each.text is None else tuple(next(encoded))) for each in given]


def _built_in(
    seed: int, answer: int, engine: EngineCommands, facts: dict[str, Any]
) -> list[GivenPrompts]:
    n, longest = facts["block_tokens"], facts["longest"] - answer
    if longest < 1:
        raise SettingsError(
            f"--tokens: expected less than --max-model-len {facts['longest']}, found {answer}"
        )
    if not facts["has_tokenizer"]:
        return prompts.ids(n, facts["vocab"], longest, seed)
    lines, needed = 8 + n // 2, 2 * sum(prompts.lengths(n, longest))
    tokens: list[int] = []
    while len(tokens) < needed:
        (more,) = engine.ask("encode", texts=[prompts.ledger(lines, seed)])["tokens"]
        # The tokenizer knows no word, or cuts texts.
        if len(more) <= len(tokens):
            return prompts.ids(n, facts["vocab"], longest, seed)
        tokens, lines = more, 2 * lines
    return prompts.cut(tokens, n, longest)


def _fitting(
    each: GivenPrompts, tokens: tuple[int, ...], answer: int, facts: dict[str, Any]
) -> tuple[int, ...]:
    if not tokens:
        raise SettingsError(f"{each.name}: expected a prompt with tokens, found none")
    if max(tokens) >= facts["vocab"]:
        raise SettingsError(
            f"{each.name}: expected token ids below {facts['vocab']}, found {max(tokens)}"
        )
    if len(tokens) + answer > facts["longest"]:
        raise SettingsError(
            f"{each.name}: expected at most {facts['longest'] - answer} tokens, which leaves "
            f"{answer} of --max-model-len {facts['longest']} for the answer, found {len(tokens)}"
        )
    return tokens


def _questions(
    asked: list[questions.ScoredQuestion],
    answer: int,
    engine: EngineCommands,
    facts: dict[str, Any],
) -> list[VerifyPrompt]:
    """The questions, each after as many worked ones as fill a block, which are not asked."""
    if not asked:
        return []
    if not facts["has_tokenizer"]:
        raise SettingsError("--questions: expected a model with a tokenizer, found none")
    shots = min(questions.LEAST_SHOTS, len(asked) - 1)
    while shots < len(asked) - 1:
        (tokens,) = engine.ask("encode", texts=[questions.shown(asked[:shots])])["tokens"]
        if len(tokens) > facts["block_tokens"]:
            break
        shots += 1
    head, rest = questions.shown(asked[:shots]), asked[shots:]
    encoded = engine.ask("encode", texts=[head + questions.asked(each) for each in rest])["tokens"]
    return [
        VerifyPrompt(
            name := f"question {each.line}",
            _fitting(GivenPrompts(name), tuple(tokens), answer, facts),
            answer,
            questions.STOP,
            each.wanted,
        )
        for each, tokens in zip(rest, encoded, strict=True)
    ]


@contextmanager
def _interruptible() -> Iterator[None]:
    """Treats SIGTERM and a closed terminal like Ctrl-C: no engine is left behind."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
