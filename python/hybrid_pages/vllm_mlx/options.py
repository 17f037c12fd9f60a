"""The flags of ``hybrid-pages vllm-mlx serve``, which are checked before a model is loaded."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.tiers import TierSettings
from hybrid_pages.arguments import require_port
from hybrid_pages.mlx.options import require_ranges, server_parser, tiers_of

COMMAND = "hybrid-pages vllm-mlx"

_HELP = """\
Runs vllm-mlx's server, batching continuously, with a prompt cache that shares pages, keeps
recurrent states where prompts fork, and holds a budget of bytes. Takes all flags of `vllm-mlx
serve`, and:
"""
_MOST = 1 << 31
_OWN_CACHE = "vllm-mlx serve, which has another cache, takes it"
_ALONE = "it works without --continuous-batching alone, which this cache needs"

# Flags of vllm-mlx with which this cache cannot work, and why.
_REFUSED = {
    "disable_prefix_cache": "vllm-mlx serve runs without a cache",
    "no_memory_aware_cache": _OWN_CACHE,
    "use_paged_cache": _OWN_CACHE,
    "kv_cache_quantization": _OWN_CACHE,
    "ssd_cache_dir": "use --disk-path and --disk-gb",
    "max_kv_size": "caches of bounded size cannot be stored",
    "models_config": "name one model, whose prompts take --host-gb",
    "mllm": "models with images are served by vllm-mlx serve",
    "prefix_trie_cache": _ALONE,
    "specprefill": _ALONE,
    "enable_mtp": _ALONE,
}
# Numbers with which vllm-mlx starts and does not work, or that have no effect.
_RANGES: dict[str, tuple[float, float]] = {
    "port": (1, 65535),
    "max_num_seqs": (1, _MOST),
    "prefill_batch_size": (1, _MOST),
    "completion_batch_size": (1, _MOST),
    "prefill_step_size": (1, _MOST),
    "chunked_prefill_tokens": (0, _MOST),
    "stream_interval": (1, _MOST),
    "timeout": (1e-3, 1e9),
    "rate_limit": (0, _MOST),
    "auto_unload_idle_seconds": (0, 1e9),
}


def split(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Splits a command line behind ``serve`` into the flags of this package and vllm-mlx's.

    Raises:
        SystemExit: a wrong command line, or a question for help; prints the usage.
    """
    parser = server_parser(
        f"{COMMAND} serve", "MODEL", _HELP, instead="--cache-memory-mb says the same in MiB"
    )
    parser.add_argument("--cache-memory-mb", type=int, help=argparse.SUPPRESS)
    words = list(argv)
    helps = {"-h", "--help"} & set(words)
    if helps:
        parser.print_help()
        print("\nvllm-mlx serve:\n")
        return argparse.Namespace(), ["--help"]
    if words[:1] != ["serve"]:
        found = repr(words[0]) if words else "none"
        parser.error(f"expected the command serve, found {found}: vllm-mlx itself has the others")
    own, rest = parser.parse_known_args(words[1:])
    return own, rest


def tiers(own: argparse.Namespace) -> TierSettings:
    """The tiers' settings by the flags, checked for this machine.

    Raises:
        HybridPagesError: names the setting.
    """
    asked = None if own.cache_memory_mb is None else own.cache_memory_mb << 20
    return tiers_of(own, "--cache-memory-mb", asked)


def require_theirs(theirs: Any, words: Sequence[str]) -> None:
    """Rejects flags of vllm-mlx that do not work with this cache, or not at all.

    words: vllm-mlx's part of the command line.

    Raises:
        SettingsError: names the flag.
    """
    if not theirs.model:
        raise SettingsError("MODEL: expected a folder or a name on the hub, found none: name one")
    for name, why in _REFUSED.items():
        if getattr(theirs, name):
            raise SettingsError(f"--{name.replace('_', '-')}: expected none, found one: {why}")
    for flag in ("--cache-memory-percent", "--prefix-cache-size", "--ssd-cache-max-gb"):
        if any(word.partition("=")[0] == flag for word in words):
            raise SettingsError(f"{flag}: expected none, found one: --host-gb is the budget")
    require_ranges(theirs, _RANGES)
    require_port(theirs.host, theirs.port)
