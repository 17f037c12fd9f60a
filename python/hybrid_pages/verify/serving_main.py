"""``hybrid-pages verify --url``: exit status 0 if everything restored is equal, 1 if something
differs or a load failed, 2 if it could not tell, 3 if nothing was compared since another run is
under way or the engine is too busy."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hybrid_pages
from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.interrupts import ENDING, interruptible
from hybrid_pages.scrape import base_of, version_of
from hybrid_pages.served import ServedModel, ServedModelError
from hybrid_pages.text import size
from hybrid_pages.verify import output, prompts, result_metrics
from hybrid_pages.verify.made import made
from hybrid_pages.verify.report import report
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


@dataclass
class _Outcome:
    """What is known of a run so far. model: empty until it is known."""

    url: str
    status: int = UNTOLD
    model: str = ""
    found: dict[str, Any] | None = None
    error: str = ""
    is_told: bool = False
    """Whether the error says already why some of it can't be written."""


def run(args: SimpleNamespace) -> int:
    """Verifies an engine that serves."""
    outcome = _Outcome(base_of(args.url), model=args.model or "")
    try:
        output.check(args)
        if args.metrics is not None:
            output.require_replaceable("--metrics", args.metrics.absolute())
        with interruptible(*ENDING), _alone(outcome.url):
            try:
                _verify(args, outcome)
            except (HybridPagesError, OSError) as error:
                outcome.status = NOT_RUN if isinstance(error, BusyError) else UNTOLD
                outcome.error = str(error)
            return _told(args, outcome)
    except KeyboardInterrupt:
        outcome.status, outcome.error = INTERRUPTED, "interrupted"
    except (OtherRunError, SettingsError) as error:
        outcome.is_told = isinstance(error, SettingsError)
        outcome.status = UNTOLD if outcome.is_told else NOT_RUN
        outcome.error = str(error)
    return _told(args, outcome)


def _told(args: SimpleNamespace, outcome: _Outcome) -> int:
    """Tells of a run wherever that is wanted; the exit status."""
    found, status = outcome.found, outcome.status
    if found is None:
        print(f"hybrid-pages verify: {outcome.error}", file=sys.stderr)
    for write in (_write_report, _write_metrics):
        try:
            write(args, outcome)
        except OSError as error:
            if not outcome.is_told:
                print(f"hybrid-pages verify: {error}", file=sys.stderr)
            status = status or UNTOLD
    if found is not None:
        output.show_on_terminal(args, found)
    return status


def _write_report(args: SimpleNamespace, outcome: _Outcome) -> None:
    if outcome.found is None:
        output.write_failure(args, outcome.status, outcome.error)
    else:
        output.write(args, outcome.found)


def _write_metrics(args: SimpleNamespace, outcome: _Outcome) -> None:
    if args.metrics is not None and outcome.status in (EQUAL, DIFFERENT, UNTOLD):
        path = args.metrics.absolute()
        result_metrics.write(path, outcome.url, outcome.model, outcome.status, outcome.found)


def _verify(args: SimpleNamespace, outcome: _Outcome) -> None:
    """Finds the report, and the exit status.

    Raises:
        HybridPagesError: nothing can be told.
    """
    given = None if args.prompts is None else prompts.read(args.prompts)
    costs = RunCosts(outcome.url, args.timeout)
    key = os.environ.get("VLLM_API_KEY", "")
    served = ServedModel(outcome.url, key=key, model=outcome.model, left=costs.left)
    outcome.model = served.model
    engine = CheckedServer(served, costs)
    tokenizer = _Tokenizer(served)
    facts = {
        "vllm": version_of(served.base, costs.left()) or "(unknown)",
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
    outcome.status = _status(runs, verdict)
    outcome.found = _report(args, engine, runs, verdict, outcome.status)


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
    args: SimpleNamespace,
    engine: CheckedServer,
    serving: ServingRuns,
    verdict: VerifyVerdict,
    status: int,
) -> dict[str, Any]:
    runs, costs, seconds = serving.runs, engine.costs, time.monotonic() - engine.costs.began
    if engine.reasons_to_doubt:
        runs.facts["notes"].append(
            f"other requests may have run beside {engine.reasons_to_doubt} of {costs.requests} "
            "requests: their batches round in another way"
        )
    runs.facts["notes"].append(_costs_in_words(costs, seconds))
    about = {
        "status": status,
        "failed_loads": serving.failed,
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
