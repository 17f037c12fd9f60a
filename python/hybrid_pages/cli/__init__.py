"""The ``hybrid-pages`` command.

It runs on Typer and Rich, which vLLM brings; ``pip install 'hybrid-pages[cli]'`` brings them
elsewhere. Nothing else of the package needs them, nor do the servers ``mlx-server`` and
``vllm-mlx``.

Every command but these servers has ``--json``, and these exit statuses: 0 for a good answer, 1 for
a bad one (findings, damage, a difference), 2 for a command line or an input that can't be used, 130
when interrupted.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence

import hybrid_pages
from hybrid_pages.adapter.errors import MissingError, VersionError

_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    Raises:
        SystemExit: a wrong command line, with usage; ``--version``.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["mlx-server"]:
        return _mlx_server(words[1:])
    if words[:1] == ["vllm-mlx"]:
        return _vllm_mlx(words[1:])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a locale may lack what is printed
    try:
        status = _run(words)
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in _OF_OUTPUT:
            raise
        return _cannot_print(error)
    except SystemExit as end:
        # Click ends like this when nobody reads on.
        if isinstance(end.__context__, BrokenPipeError):
            return _cannot_print(end.__context__)
        raise
    return status


def _cannot_print(error: OSError) -> int:
    # Python would try again at its end, and complain.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if not isinstance(error, BrokenPipeError):
        print(f"hybrid-pages: cannot print: {error}", file=sys.stderr)
    return 2


def _run(words: list[str]) -> int:
    if words == ["--version"]:
        print(f"hybrid-pages {hybrid_pages.__version__}")
        sys.exit(0)
    try:
        from hybrid_pages.cli.app import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print(
            f"hybrid-pages: expected typer and rich, found no {error.name}: "
            "pip install 'hybrid-pages[cli]' (vLLM brings them, too)",
            file=sys.stderr,
        )
        return 2
    return run(words)


def _vllm_mlx(words: list[str]) -> int:
    """Runs ``vllm-mlx``. Nearly all of its flags are vllm-mlx's, so they are not parsed here."""
    try:
        from hybrid_pages.vllm_mlx.versions import require_installed

        require_installed()
        from hybrid_pages.vllm_mlx.server import main as serve
    except (MissingError, VersionError) as error:
        print(f"hybrid-pages vllm-mlx: {error}", file=sys.stderr)
        return 2
    return serve(words)


def _mlx_server(words: list[str]) -> int:
    """Runs ``mlx-server``. Nearly all of its flags are mlx-lm's, so they are not parsed here."""
    try:
        from hybrid_pages.mlx.server import main as serve
    except (MissingError, VersionError) as error:
        print(f"hybrid-pages mlx-server: {error}", file=sys.stderr)
        return 2
    except (ImportError, AttributeError) as error:
        # mlx-lm's server has other parts than expected. If newer than tested, it runs as it is.
        from hybrid_pages.mlx.options import run_plain

        return run_plain(words, error)
    return serve(words)
