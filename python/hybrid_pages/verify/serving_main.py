"""``hybrid-pages verify --url``: exit status 0 if everything restored is equal, 1 if something
differs or a load failed, 2 if it could not tell, 3 if nothing was compared since another run is
under way or the engine is too busy."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hybrid_pages
from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.interrupts import interruptible
from hybrid_pages.scrape import base_of, version_of
from hybrid_pages.served import ServedModel, ServedModelError
from hybrid_pages.text import size
from hybrid_pages.verify import output, prompts, result_metrics
from hybrid_pages.verify.made import made
from hybrid_pages.verify.report import report
from hybrid_pages.verify.runs import Runs
from hybrid_pages.verify.serving import BusyError, CheckedServer, RunCosts
from hybrid_pages.verify.serving_runs import ServingRuns
from hybrid_pages.verify.tiers import HOST
from hybrid_pages.verify.verdict import VerifyVerdict, judge

EQUAL, DIFFERENT, UNTOLD, NOT_RUN, INTERRUPTED = 0, 1, 2, 3, 130
_WITHOUT_VOCABULARY = 256
"""How many ids every model has, nearly."""
_LONGEST = 4096
"""The longest prompt, where the server does not tell what it takes."""


class OtherRunError(HybridPagesError):
    """Another run of verify is under way at the same address."""


def run(args: SimpleNamespace) -> int:
    """Verifies an engine that serves."""
    url, found, status = base_of(args.url), None, UNTOLD
    try:
        output.check(args)
        if args.metrics is not None:
            output.require_writable("--metrics", args.metrics.absolute())
        given = None if args.prompts is None else prompts.read(args.prompts)
        with interruptible(*output.ENDING), _alone(url):
            found, status = _verified(args, given)
            _write_metrics(args, url, status, found)
    except KeyboardInterrupt:
        print("hybrid-pages verify: interrupted", file=sys.stderr)
        return INTERRUPTED
    except (OtherRunError, BusyError) as error:
        print(f"hybrid-pages verify: {error}", file=sys.stderr)
        return NOT_RUN
    except (HybridPagesError, OSError) as error:
        print(f"hybrid-pages verify: {error}", file=sys.stderr)
        with contextlib.suppress(OSError):
            _write_metrics(args, url, UNTOLD, None)
        return UNTOLD
    try:
        output.write(args, found)
    except OSError as error:
        print(f"hybrid-pages verify: {error}", file=sys.stderr)
        return status or UNTOLD
    output.show_on_terminal(args, found)
    return status


def _write_metrics(
    args: SimpleNamespace, url: str, status: int, found: dict[str, Any] | None
) -> None:
    if args.metrics is not None and args.metrics.absolute().parent.is_dir():
        result_metrics.write(args.metrics.absolute(), url, status, found)


def _verified(
    args: SimpleNamespace, given: list[prompts.GivenPrompts] | None
) -> tuple[dict[str, Any], int]:
    """The report, and the exit status.

    Raises:
        HybridPagesError: nothing can be told.
    """
    served = ServedModel(args.url, key=os.environ.get("VLLM_API_KEY", ""), model=args.model or "")
    engine = CheckedServer(served, args.timeout)
    tokenizer = _Tokenizer(served)
    facts = {
        "vllm": version_of(served.base) or "(unknown)",
        "platform": served.base,
        "longest": served.most_tokens or _LONGEST,
        "vocab": 1 << 31,
        "sure_ids": _WITHOUT_VOCABULARY,
        "has_tokenizer": tokenizer.works,
        "few": True,
        "notes": [],
    }
    runs = ServingRuns(engine, uuid.uuid4().hex, _say)
    try:
        runs.collect(lambda facts: made(args, given, [], tokenizer, facts), facts)
    except (ServedModelError, KeyboardInterrupt) as error:
        # What differs is told, whatever came after.
        if not (runs.runs.prompts and judge(runs.runs).differs):
            raise
        runs.runs.facts["notes"].append(f"the run did not end: {error or 'interrupted'}")
    verdict = _verdict(runs)
    return _report(args, engine, runs.runs, verdict), _status(runs, verdict)


def _verdict(runs: ServingRuns) -> VerifyVerdict:
    for tier in runs.runs.facts["tiers"]:
        runs.runs.reasons[tier] = _why_not(tier)
        failed = [each for each in runs.failed if each.startswith(f"{tier}: ")]
        if failed:
            runs.runs.figures[tier] = {f"load_failures:{failed[0].partition(': ')[2]}": len(failed)}
    return judge(runs.runs)


def _why_not(tier: str) -> str:
    if tier == HOST:
        return (
            "the engine stored nothing of the prompts, or had no room for them: its metrics "
            "skipped_entries, skipped_tails and free_bytes say which"
        )
    return (
        f"in time the {tier} had not taken all of a prompt: its metrics {tier}_entries, "
        f"{tier}_failures and {tier}_out say why not"
    )


def _status(runs: ServingRuns, verdict: VerifyVerdict) -> int:
    if verdict.differs or runs.failed:
        return DIFFERENT
    return EQUAL if verdict.good else UNTOLD


def _report(
    args: SimpleNamespace, engine: CheckedServer, runs: Runs, verdict: VerifyVerdict
) -> dict[str, Any]:
    costs, seconds = engine.costs, time.monotonic() - engine.costs.began
    if engine.reasons_to_doubt:
        runs.facts["notes"].append(
            f"other requests may have run beside {engine.reasons_to_doubt} of {costs.requests} "
            "requests: their batches round in another way"
        )
    runs.facts["notes"].append(_costs_in_words(costs, seconds))
    about = {
        "model": engine.served.model,
        "url": engine.served.base,
        "flags": "",
        "hybrid_pages": hybrid_pages.__version__,
        "concurrency": 1,
        "plant": "",
        "seed": args.seed,
        "costs": {
            "requests": costs.requests,
            "prompt_tokens": costs.prompt_tokens,
            "computed_tokens": costs.computed_tokens,
            "answer_tokens": costs.answer_tokens,
            "host_bytes": costs.host_bytes,
            "seconds": round(seconds, 3),
        },
    }
    return report(runs, verdict, about)


def _costs_in_words(costs: RunCosts, seconds: float) -> str:
    return (
        f"it cost {costs.requests} requests with {costs.prompt_tokens:,} prompt tokens, of which "
        f"{costs.computed_tokens:,} were computed, {costs.answer_tokens:,} tokens of answers, "
        f"{seconds:.1f} s, and for the time about {size(costs.host_bytes)} of host memory"
    )


class _Tokenizer:
    """The tokenizer of a served model."""

    def __init__(self, served: ServedModel) -> None:
        self._served = served
        try:
            self.works = bool(served.tokens({"prompt": "one word"}))
        except ServedModelError:
            self.works = False

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Tokens of texts, the only command."""
        if not self.works:
            raise SettingsError(
                f"{self._served.base}/tokenize: expected tokens of a text, found none: give "
                '"prompt_token_ids", or start the server with a tokenizer'
            )
        return {"tokens": [self._served.tokens({"prompt": text}) for text in arguments["texts"]]}


def _say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"verify: {what}", file=sys.stderr, flush=True)


@contextmanager
def _alone(url: str) -> Iterator[None]:
    """Holds a lock, which only one run at an address has at a time on this machine.

    Raises:
        OtherRunError: another run has it.
        SettingsError: it can't be made.
    """
    name = hashlib.sha256(url.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"hybrid-pages-verify-{os.getuid()}-{name}.lock"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(
            f"expected a file to lock, found: {error}: set TMPDIR to a directory of your own"
        ) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OtherRunError(
                f"{url}: another run of verify is under way here (it has {path}): nothing was "
                "compared"
            ) from None
        yield
    finally:
        os.close(lock)
