"""Why an engine did not start: found in logs of real vLLM engines (`tests/data/engine-logs/`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybrid_pages.cause import cause_of, cause_of_error, with_fix

LOGS = Path(__file__).parents[1] / "data" / "engine-logs"


def said(name: str, status: int | None = 1) -> tuple[str, str]:
    """What went wrong first in a log, and what to change."""
    found = cause_of((LOGS / f"{name}.log").read_text(), status)
    assert found is not None
    cause, _, fix = found.partition("\nchange: ")
    return cause, fix


@pytest.mark.parametrize(
    ("name", "cause", "fix"),
    [
        (
            "cpu-memory",
            "ValueError: Available memory on node 0 (16.56/23.54 GiB) on startup is less than "
            "desired CPU memory utilization (0.95, 22.36 GiB).",
            "--gpu-memory-utilization 0.63, which would fit now",
        ),
        (
            "cache-memory",
            "ValueError: Available memory on node 0 (15.15/23.54 GiB) on kv cache allocation is "
            "less than requested memory for kv (931.32 GiB).",
            "--kv-cache-memory-bytes",
        ),
        (
            "no-model",
            "huggingface_hub.errors.HFValidationError: Repo id must be in the form",
            "name a folder with a config.json",
        ),
        (
            "quantization",
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
            "Value error, Cannot find the config file for awq",
            "",
        ),
        ("two-ranks", "AssertionError: Not enough allowed NUMA nodes to bind threads of 2", ""),
        ("port", "OSError: [Errno 98] Address already in use", "another with --port"),
        ("option", "entry.py: error: unrecognized arguments: --no-such-option", ""),
        (
            "killed",
            "a process of the engine ended without a word, as with signal 9",
            "it kills processes where memory runs out",
        ),
    ],
)
def test_the_first_exception_is_found_with_what_to_change(name: str, cause: str, fix: str) -> None:
    found = said(name)
    assert found[0].startswith(cause)
    assert fix in found[1]
    assert bool(fix) == bool(found[1])


@pytest.mark.parametrize("name", ["cpu-memory", "cache-memory"])
def test_the_last_lines_do_not_hold_the_cause(name: str) -> None:
    """As long as that is so, they do not suffice."""
    last = "\n".join((LOGS / f"{name}.log").read_text().splitlines()[-40:])
    assert said(name)[0].partition("\n")[0] not in last


def test_a_process_that_was_killed_itself_is_told_by_its_status() -> None:
    found = cause_of("INFO 01-01 00:00:00 [core.py:1] starting\n", -9)
    assert found is not None and found.startswith("the engine's process was ended by signal 9\n")
    core = "RuntimeError: See root cause above. Failed core proc(s): {'EngineCore_DP0': -9}\n"
    assert str(cause_of(core)).startswith("the process EngineCore_DP0 was ended by signal 9\n")
    assert cause_of("nothing\n", 1) is None
    assert cause_of("", None) is None


def test_lines_of_other_processes_between_are_left_out() -> None:
    log = (
        "(A pid=1) ERROR 01-01 00:00:00 [a.py:1] Traceback (most recent call last):\n"
        "(B pid=2) ERROR 01-01 00:00:00 [b.py:1] Traceback (most recent call last):\n"
        '(A pid=1) ERROR 01-01 00:00:00 [a.py:1]   File "a.py", line 1, in f\n'
        '(B pid=2) ERROR 01-01 00:00:00 [b.py:1]   File "b.py", line 1, in g\n'
        "(B pid=2) ERROR 01-01 00:00:00 [b.py:1] KeyError: 'second'\n"
        "(A pid=1) ERROR 01-01 00:00:00 [a.py:1] ValueError: first\n"
        "(B pid=2) INFO 01-01 00:00:00 [b.py:2] going on\n"
        "(A pid=1) ERROR 01-01 00:00:00 [a.py:1]   of two lines\n"
        "(A pid=1) INFO 01-01 00:00:00 [a.py:2] ends\n"
    )
    assert cause_of(log) == "ValueError: first\nof two lines"


def test_a_traceback_that_is_only_a_warning_is_no_cause() -> None:
    def log(level: str) -> str:
        head = f"{level} 01-01 00:00:00 [a.py:1]"
        return f"{head} Traceback (most recent call last):\n{head}   f()\n{head} KeyError: 1\n"

    assert cause_of(log("WARNING")) is None
    assert cause_of(log("WARNING") + log("ERROR").replace("1\n", "2\n")) == "KeyError: 2"


def test_what_only_says_that_another_process_failed_is_no_cause() -> None:
    log = (
        "Traceback (most recent call last):\n  f()\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
        "proc(s): {}\n"
    )
    assert "without a word" in str(cause_of(log))
    real = "Traceback (most recent call last):\n  f()\nMemoryError\n"
    assert str(cause_of(log + real)).startswith("MemoryError\nchange: ")


def test_colours_do_not_hide_it() -> None:
    log = (
        "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m ERROR 01-01 00:00:00 [core.py:1] Traceback (most "
        "recent call last):\n"
        "\x1b[0;36m(EngineCore pid=7)\x1b[0;0m ERROR 01-01 00:00:00 [core.py:1] ValueError: it\n"
    )
    assert cause_of(log) == "ValueError: it"


def test_an_exception_in_this_process_is_told_by_the_one_that_began_it() -> None:
    def fail() -> None:
        try:
            raise OSError("[Errno 98] Address already in use")
        except OSError as error:
            raise RuntimeError("could not start") from error

    with pytest.raises(RuntimeError) as caught:
        fail()
    found = cause_of_error(caught.value)
    assert found.startswith("OSError: [Errno 98] Address already in use\nchange: ")


@pytest.mark.parametrize("name", ["cpu-memory", "option"])
def test_serve_ends_with_what_went_wrong_first(name: str) -> None:
    from hybrid_pages.demo.serve import _tail

    with (LOGS / f"{name}.log").open("rb") as log:
        text = _tail(log, 1)
    assert text.startswith("its last lines:\n")
    cause, fix = said(name)
    *_, last = text.split("\nwhat went wrong first: ")
    assert last == (f"{cause}\nchange: {fix}" if fix else cause)


def test_verify_ends_with_what_went_wrong_first() -> None:
    from hybrid_pages.verify import process

    class Ended:
        def poll(self) -> int:
            return 1

    engine = object.__new__(process.EngineProcess)
    with (LOGS / "cpu-memory.log").open("rb") as log:
        engine._log, engine._begins, engine._process = log, 0, Ended()  # type: ignore[assignment]
        failed = str(engine._failed("RuntimeError: See root cause above.", by_log=True))
        known = str(engine._failed("a setting: expected 1, found 2", by_log=False))
        engine._begins = (LOGS / "cpu-memory.log").stat().st_size
        told = str(engine._failed("OSError: [Errno 98] Address already in use", by_log=True))
    assert failed.splitlines()[-2].startswith("what went wrong first: ValueError: Available memory")
    assert failed.splitlines()[-1].startswith("change: --gpu-memory-utilization 0.63")
    assert known == "a setting: expected 1, found 2"
    assert told.splitlines()[-1].startswith("change: end what listens on that port")


def test_a_share_that_no_engine_takes_is_not_named() -> None:
    text = with_fix(
        "ValueError: Available memory on node 0 (0.2/1000.0 GiB) on startup is less than desired "
        "CPU memory utilization (0.9, 900.0 GiB)."
    )
    assert "change: a smaller --gpu-memory-utilization" in text
    assert "would fit" not in text


def test_an_exception_that_python_goes_on_from_is_not_the_cause() -> None:
    ignored = "Exception ignored in: <function Pool.__del__ at 0x7f>\n"
    trace = 'Traceback (most recent call last):\n  File "a.py", line 1, in a\n'
    harmless, real = "AttributeError: no attribute 'y'\n", "ValueError: too many heads\n"
    assert cause_of(ignored + trace + harmless + trace + real) == real.strip()
    other = "(Worker pid=7) "  # of another process: it says nothing about the next line
    assert cause_of(other + ignored + trace + real) == real.strip()
