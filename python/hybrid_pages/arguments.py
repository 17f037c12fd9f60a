"""Checks of command-line arguments, before anything is loaded."""

from __future__ import annotations

import errno
import math
import os
import re
import reprlib
import socket
from collections.abc import Callable
from pathlib import Path

from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.memory import GIB, free_memory, memory_bytes

_PICTURES = (".png", ".pdf", ".svg")


class WrongArgument(HybridPagesError, ValueError):
    """A command-line argument that its option does not accept."""


def whole(most: int) -> Callable[[str], int]:
    """Reads a whole number from 1 to ``most``."""

    def read(text: str) -> int:
        # The digits are limited, too: int() refuses thousands of them with another error.
        if not re.fullmatch(r"0{0,9}[1-9][0-9]{0,18}", text) or int(text) > most:
            raise WrongArgument(
                f"expected a whole number from 1 to {most}, found {reprlib.repr(text)}"
            )
        return int(text)

    return read


def gib(least: float) -> Callable[[str], float]:
    """Reads a size in GiB from ``least`` to the memory of this machine that is free."""

    def read(text: str) -> float:
        most = math.floor(memory_bytes() / GIB * 100) / 100
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        # False for NaN, which stands for a text that is no number.
        if not least <= value <= most:
            raise WrongArgument(
                f"expected a size in GiB from {least:g} to {most:.2f}, this machine's memory, "
                f"found {reprlib.repr(text)}"
            )
        free = free_memory()
        if value * GIB > free.nbytes:
            raise WrongArgument(
                f"expected at most {free}, found {reprlib.repr(text)}: lower it, or free some"
            )
        return value

    return read


def positive(most: float) -> Callable[[str], float]:
    """Reads a number above 0, up to ``most``."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= most:
            raise WrongArgument(
                f"expected a number above 0 and up to {most:g}, found {reprlib.repr(text)}"
            )
        return value

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """Reads one of the given words."""

    def read(text: str) -> str:
        if text not in words:
            raise WrongArgument(f"expected {', '.join(words)}, found {reprlib.repr(text)}")
        return text

    return read


def require_named(option: str, text: object) -> None:
    """Rejects an empty name or path.

    Raises:
        WrongArgument: names the option.
    """
    if not str(text).strip() or "\0" in str(text):
        raise WrongArgument(f"{option}: expected a name, found {str(text)!r}: name one")


def require_file(option: str, path: str) -> None:
    """Rejects the path of anything but a file that can be read.

    Raises:
        WrongArgument: names the option.
    """
    require_named(option, path)
    # It is not opened: a pipe can be read once.
    reasons = (
        (not os.path.exists(path), errno.ENOENT),
        (os.path.isdir(path), errno.EISDIR),
        (not os.access(path, os.R_OK), errno.EACCES),
    )
    for wrong, reason in reasons:
        if wrong:
            raise WrongArgument(
                f"{option}: expected a file that can be read, found {path!r} "
                f"({os.strerror(reason)}): name another"
            )


def require_picture(option: str, path: Path | None) -> None:
    """Rejects a path where a picture could not be written at the end of a command.

    Raises:
        WrongArgument: names the option.
    """
    if path is None:
        return
    if path.suffix.lower() not in _PICTURES:
        raise WrongArgument(
            f"{option}: expected a name that ends in {', '.join(_PICTURES)}, found {path}"
        )
    folder = path.absolute().parent
    if not folder.is_dir():
        raise WrongArgument(
            f"{option}: expected a folder that exists, found {folder}: make it, or name another"
        )
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise WrongArgument(
            f"{option}: expected a file that can be written, found {path}: name another"
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise WrongArgument(
            f"{option}: expected matplotlib, which draws it, found none: pip install matplotlib"
        ) from None


def require_port(host: str, port: int) -> None:
    """Rejects an address where no server can listen.

    Raises:
        WrongArgument: says why, and what to change.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (socket.gaierror, UnicodeError) as error:
        raise WrongArgument(
            f"--host: expected a name or an address of this machine, found {host!r}: {error}"
        ) from None
    except PermissionError:
        raise WrongArgument(
            f"--port: expected one that this user may listen on, found {port}: choose one above "
            "1023"
        ) from None
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise WrongArgument(
                f"--host: expected an address of this machine, found {host!r}: {error.strerror}"
            ) from None
        raise WrongArgument(
            f"--port: expected a free port, found {port} in use on {host}: end what listens there, "
            "or choose another with --port"
        ) from None
