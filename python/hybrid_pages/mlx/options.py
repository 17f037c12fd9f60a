"""The flags of ``hybrid-pages mlx-server``, which are checked before a model is loaded."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_pages import HybridPagesError
from hybrid_pages.adapter.encryption import key_setting
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.memory import GIB
from hybrid_pages.adapter.tiers import TierSettings, require_block_tokens
from hybrid_pages.mlx.versions import tolerated

COMMAND = "hybrid-pages mlx-server"

_HELP = """\
Runs mlx_lm.server with a prompt cache that shares pages, keeps recurrent states where prompts fork,
and holds a budget of bytes. Takes all flags of mlx_lm.server, and:
"""
_HOST_GB, _BLOCK_TOKENS = 4.0, 32
_MOST = 1 << 31
_UNITS = {"": 1, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9}

# The numbers with which mlx-lm's own flags work; mlx-lm itself does not check them.
_RANGES: dict[str, tuple[float, float]] = {
    "port": (1, 65535),
    "num_draft_tokens": (0, _MOST),
    "temp": (0, 1e6),
    "top_p": (0, 1),
    "top_k": (0, _MOST),
    "min_p": (0, 1),
    "max_tokens": (1, _MOST),
    "decode_concurrency": (1, _MOST),
    "prompt_concurrency": (1, _MOST),
    "prefill_step_size": (1, _MOST),
    "prompt_cache_size": (0, _MOST),
    "quantized_kv_start": (0, _MOST),
}
_CHOICES = {"kv_bits": (2, 3, 4, 5, 6, 8), "kv_group_size": (32, 64, 128)}


def split(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Splits a command line into the flags of this package and those of mlx-lm.

    argv: flags, behind a model if the first word is not a flag.

    Raises:
        SystemExit: a wrong command line; prints the usage.
    """
    words = list(argv)
    model = ["--model", words.pop(0)] if words and not words[0].startswith("-") else []
    parser = _parser()
    helps = {"-h", "--help"} & set(words)
    if helps:
        parser.print_help()
        print("\nmlx_lm.server:\n")
    own, rest = parser.parse_known_args([word for word in words if word not in ("-h", "--help")])
    return own, ["--help"] if helps else [*model, *rest]


def tiers(own: argparse.Namespace) -> TierSettings:
    """The tiers' settings by the flags, checked for this machine.

    Raises:
        HybridPagesError: names the setting.
    """
    return tiers_of(own, "--prompt-cache-bytes", own.prompt_cache_bytes)


def tiers_of(own: argparse.Namespace, flag: str, nbytes: int | None) -> TierSettings:
    """The tiers' settings by the flags of :func:`server_parser`, checked for this machine.

    flag: one that gives the budget in bytes, in the place of ``--host-gb``. nbytes: which it gave.

    Raises:
        HybridPagesError: names the setting.
    """
    require_block_tokens(own.block_tokens)
    if own.disk_path == "":
        raise SettingsError("--disk-path: expected a directory, found '': name one, or drop it")
    if own.host_gb is not None and nbytes is not None:
        raise SettingsError(
            f"{flag}: expected it or --host-gb, found both: they say the same, so drop one"
        )
    host_gb = _HOST_GB if own.host_gb is None else own.host_gb
    if nbytes is not None and nbytes <= 0:
        raise SettingsError(f"{flag}: expected a size above 0, found {nbytes}: raise it")
    if nbytes is not None:
        host_gb = nbytes / GIB
    if own.disk_gb is not None and not own.disk_path:
        raise SettingsError(
            f"--disk-path: expected a directory with --disk-gb {own.disk_gb:g}, found none: name "
            "one, or drop --disk-gb"
        )
    found = TierSettings(
        host_gb, own.disk_path or "", own.disk_gb or 0.0, encrypt_key=key_setting(own.encrypt_key)
    )
    found.require_here()
    return found


def require_theirs(theirs: Any) -> None:
    """Rejects values of mlx-lm's flags with which its server would start but not work.

    Raises:
        SettingsError: names the flag.
    """
    if getattr(theirs, "model", None) == "":
        raise SettingsError("--model: expected a folder or a name on the hub, found ''")
    require_ranges(theirs, _RANGES)
    for name, choices in _CHOICES.items():
        value = getattr(theirs, name, None)
        if value is not None and value not in choices:
            raise SettingsError(
                f"{_flag(name)}: expected one of {', '.join(map(str, choices))}, found {value}"
            )
    arguments = getattr(theirs, "chat_template_args", None)
    if arguments is not None and not isinstance(arguments, dict):
        raise SettingsError(
            '--chat-template-args: expected an object in JSON such as \'{"enable_thinking": '
            f"false}}', found {arguments!r}"
        )


def require_ranges(theirs: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Rejects a number of a command line that is out of its range.

    Raises:
        SettingsError: names the flag.
    """
    for name, (least, most) in ranges.items():
        value = getattr(theirs, name, None)
        if value is not None and not least <= value <= most:
            raise SettingsError(
                f"{_flag(name)}: expected {least:g} to {most:.10g}, found {value}: choose another"
            )


def run_plain(argv: Sequence[str], error: Exception) -> int:
    """Runs the server of a newer mlx-lm, into which the prompt cache does not fit, without it.

    error: why it does not fit.

    Raises:
        Exception: the error, if mlx-lm is not newer than tested.
    """
    own, words = split(argv)
    with tolerated("put a prompt cache into mlx-lm's server"):
        raise error
    from mlx_lm.server import main

    words += (
        [] if own.prompt_cache_bytes is None else [f"--prompt-cache-bytes={own.prompt_cache_bytes}"]
    )
    sys.argv = [COMMAND, *words]
    main()
    return 0


def complain(error: HybridPagesError, command: str = COMMAND) -> int:
    """Prints an error, with flags in the place of settings' names. Returns the exit status.

    command: that was run.
    """
    names = r"^(host_gb|disk_path|disk_gb|encrypt_key|block_tokens)(?=[: ])"
    text = re.sub(names, lambda it: _flag(it[1]), str(error))
    print(f"{command}: {text}", file=sys.stderr, flush=True)
    return 2


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _bytes(text: str) -> int:
    """Reads a size as mlx-lm does: 8000000000, 500MB or 8G."""
    found = re.fullmatch(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)", text)
    if found is None or found[2].upper() not in _UNITS:
        raise argparse.ArgumentTypeError(
            f"expected a size such as 8GB, 500M or a number of bytes, found {text!r}"
        )
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _parser() -> argparse.ArgumentParser:
    parser = server_parser(
        COMMAND, "[MODEL]", _HELP, instead="--prompt-cache-bytes says the same in bytes"
    )
    parser.add_argument("--prompt-cache-bytes", type=_bytes, help=argparse.SUPPRESS)
    return parser


def server_parser(prog: str, model: str, about: str, *, instead: str) -> argparse.ArgumentParser:
    """A parser of the flags that this package adds to a server's.

    model: how the usage shows a model. instead: which flag of the server's may take the place of
    ``--host-gb``.
    """
    parser = argparse.ArgumentParser(
        prog=prog,
        usage=f"{prog} {model} [flags]",
        description=about,
        add_help=False,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--host-gb",
        type=float,
        help=f"GiB for stored prompts (default: {_HOST_GB:g}); {instead}",
    )
    parser.add_argument(
        "--block-tokens",
        type=int,
        default=_BLOCK_TOKENS,
        help=f"tokens per block (default: {_BLOCK_TOKENS})",
    )
    parser.add_argument("--disk-path", help="directory for prompts that outlive this")
    parser.add_argument("--disk-gb", type=float, help="quota of --disk-path in GiB")
    parser.add_argument(
        "--encrypt-key",
        help="file with the key that --disk-path is encrypted with, or env:NAME",
    )
    return parser
