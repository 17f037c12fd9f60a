"""Finds the cause in the log of an engine that did not start, and what to change.

An engine is several processes whose lines are mixed in the log. The last lines say only that
another process has failed; the first traceback is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_PROCESS = re.compile(r"\((?P<name>[\w.: -]+ pid=\d+)\) ?")
_LEVEL = re.compile(r"(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? (?P<place>\[[^\]]*\]) ?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_HARMLESS = {"DEBUG", "INFO", "WARNING"}
_TRACEBACK = "Traceback (most recent call last):"
_IGNORED = "Exception ignored "
"""Printed by Python before the traceback of an exception that it ignores."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?::|$)")
_MOST_LINES = 12
_CONSEQUENCES = re.compile(
    r"See root cause above|See stack trace for root cause|initialization failed due to"
    r"|^(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|CancelledError|BrokenPipeError"
    r"|EngineDeadError|ConnectionResetError)\b"
)
"""Messages of a process that another process, or the user, has ended."""
_KILLED = re.compile(r"Failed core proc\(s\): \{[^}]*?'(?P<name>[^']+)': (?P<status>-\d+)")
_SILENT = re.compile(r"See root cause above|See stack trace for root cause")
_USAGE = re.compile(r"[\w./-]+(?: \w+)?: error: \S.*")
_FATAL = re.compile(r"Fatal Python error: |terminate called |Segmentation fault|Bus error")

_MEMORY = "a smaller --gpu-memory-utilization (on a CPU, too) or --kv-cache-memory-bytes"
_OF_ALL = re.compile(r"\((?P<free>\d+\.?\d*)/(?P<all>\d+\.?\d*) GiB\)")
_SPARE = 0.9
"""The part of the free memory that is suggested, since other programs may take more."""
_FIXES = (
    (
        r"less than desired CPU memory utilization",
        f"{_MEMORY}. vLLM takes a share of the machine's whole memory, and what other programs and "
        "the page cache hold may count as taken",
    ),
    (r"less than desired GPU memory utilization", f"{_MEMORY}, or end what else uses the GPU"),
    (r"on kv cache allocation is less than", f"{_MEMORY}, or end other programs"),
    (
        r"No available memory for the cache blocks|KV cache is needed, which is larger than",
        "a smaller --max-model-len, or more memory for vLLM's own cache: "
        "--gpu-memory-utilization or --kv-cache-memory-bytes",
    ),
    (
        r"out of memory|OutOfMemory|can't allocate memory|Cannot allocate memory|MemoryError"
        r"|bad_alloc",
        f"{_MEMORY}, a smaller host_gb, or a smaller model",
    ),
    (
        r"[Aa]ddress already in use",
        "end what listens on that port, or choose another with --port",
    ),
    (
        r"is not a (?:valid|local) |Repo id must|RepositoryNotFound|couldn't connect to "
        r"|Can't load the configuration|does not appear to have a file named config\.json"
        r"|Invalid repository ID|LocalEntryNotFound|OfflineModeIsEnabled",
        "name a folder with a config.json, or a model of the hub that can be reached or is in the "
        "local cache",
    ),
    (
        r"signal 9\b",
        f"look at the kernel's log: it kills processes where memory runs out. {_MEMORY}, or a "
        "smaller host_gb",
    ),
    (r"Bus error", "a larger /dev/shm, such as `docker run --shm-size 16g`"),
)
"""What to change, by patterns of error texts. Errors of hybrid-pages say it themselves."""


def cause_of(log: str, status: int | None = None) -> str | None:
    """The cause of a failed start in a few lines, with what to change where that is known.

    Args:
        log: the output of the engine's processes.
        status: exit status of the process that has ended, as :mod:`subprocess` returns it.

    Returns:
        None if the log does not tell.
    """
    by_process = _by_process(log.splitlines())
    found = next(filter(None, (_first(lines) for lines in _tracebacks(by_process))), None)
    if found is None:
        found = _without_traceback(by_process, status)
    return None if found is None else with_fix(found)


def cause_of_error(error: BaseException) -> str:
    """The cause of a failed start in this process, from the exception that it has raised."""
    first = error
    while (before := first.__cause__ or _context(first)) is not None:
        first = before
    return with_fix(f"{type(first).__name__}: {first}")


def _context(error: BaseException) -> BaseException | None:
    return None if error.__suppress_context__ else error.__context__


def with_fix(found: str) -> str:
    """Adds what to change to an error text, where that is known."""
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, found)), None)
    return found if fix is None else f"{found}\nchange: {_share(found)}{fix}"


def _share(found: str) -> str:
    """A memory utilization that would fit, if vLLM's error says how much is free."""
    fits = _OF_ALL.search(found)
    if fits is None or "memory utilization" not in found or not float(fits["all"]):
        return ""
    most = int(100 * _SPARE * float(fits["free"]) / float(fits["all"])) / 100
    if not most:
        return ""
    return f"--gpu-memory-utilization {most:g}, which would fit now, or "


_Line = tuple[str, str, str]
"""One line of a log: the process, the logger's header, and the text."""


def _by_process(lines: Iterable[str]) -> list[_Line]:
    found = list[_Line]()
    for line in lines:
        text = _COLOUR.sub("", line).rpartition("\r")[2]
        process = ""
        while (match := _PROCESS.match(text)) is not None:
            process, text = match["name"], text[match.end() :]
        match = _LEVEL.match(text)
        header = ""
        if match is not None:
            header, text = f"{match['level']} {match['place']}", text[match.end() :]
        found.append((process, header, text.rstrip()))
    return found


def _tracebacks(lines: list[_Line]) -> Iterator[list[_Line]]:
    """For each traceback, in order, the lines that its process has printed from there on."""
    before = dict[str, str]()
    for index, (process, header, text) in enumerate(lines):
        harmless = header.partition(" ")[0] in _HARMLESS or _IGNORED in before.get(process, "")
        if text.endswith(_TRACEBACK) and not harmless:
            yield [line for line in lines[index + 1 :] if line[0] == process]
        before[process] = text


def _first(lines: list[_Line]) -> str | None:
    """The exception's own lines at the end of a traceback.

    lines: of one process, from the traceback on. None if they only say that another process has
    failed.
    """
    header, said = lines[0][1] if lines else "", list[str]()
    for _, each, text in lines:
        if each != header:
            if said:
                break
            continue
        if not said:
            if _EXCEPTION.match(text):
                said.append(text)
        elif (
            len(said) == _MOST_LINES
            or not text
            or text.endswith(_TRACEBACK)
            or not (header or text[0] in " -")
        ):
            break
        else:
            said.append(text.strip())
    if not said or _CONSEQUENCES.search(said[0]):
        return None
    return "\n".join(said)


def _without_traceback(lines: list[_Line], status: int | None) -> str | None:
    """The cause in a log without a traceback: a fatal error, a wrong command line, or a signal."""
    for _, _, text in lines:
        if (killed := _KILLED.search(text)) is not None:
            return f"the process {killed['name']} was ended by signal {-int(killed['status'])}"
        if _FATAL.match(text) or _USAGE.fullmatch(text):
            return text
    if status is not None and status < 0:
        return f"the engine's process was ended by signal {-status}"
    if any(_SILENT.search(text) for _, _, text in lines):
        return "a process of the engine ended without a word, as with signal 9"
    return None
