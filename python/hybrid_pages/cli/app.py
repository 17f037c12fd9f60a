"""The commands and their options. Each loads only what it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Annotated, Optional

import typer

import hybrid_pages
from hybrid_pages.arguments import gib, whole
from hybrid_pages.cli import deployment, key
from hybrid_pages.cli import info as installed
from hybrid_pages.cli.lab import add_to
from hybrid_pages.cli.options import Json, read
from hybrid_pages.cli.warm import warm

_HOST_GB = typer.Option(
    parser=read(gib(0.01)),  # with less the demo's long prompts don't fit
    metavar="GIB",
    help="Host memory for the cache.",
)
# Typer's classes of errors are not public under one name in all its versions.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="hybrid-pages",
    help="Prefix cache for hybrid models: pages and checkpoints outside GPU memory.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
store = typer.Typer(help="Look at a disk_path, verify its entries, remove what nobody needs.")
app.command()(deployment.plan)
app.command()(deployment.doctor)
app.command()(deployment.verify)
app.command()(deployment.top)
app.command()(warm)


def run(words: Sequence[str]) -> int:
    """Runs one command.

    Raises:
        SystemExit: a wrong command line, with usage.
    """
    command = typer.main.get_command(app)
    try:
        status = command.main(list(words), prog_name="hybrid-pages", standalone_mode=False)
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "hybrid-pages"
        usage = context.get_usage() if context is not None else "usage: hybrid-pages COMMAND"
        print(usage.replace("Usage:", "usage:", 1), file=sys.stderr)
        print(f"{path}: error: {_complaint(error)}", file=sys.stderr)
        sys.exit(2)
    except typer.Abort:
        print("hybrid-pages: interrupted", file=sys.stderr)
        return 130
    except typer.Exit as ended:
        return int(ended.exit_code)
    return int(status or 0)


def _complaint(error: Exception) -> str:
    """The reason why a command line was refused, with the option's name before it."""
    message = str(getattr(error, "message", None) or "")
    named, hint = getattr(error, "param", None), getattr(error, "param_hint", None)
    if named is None and hint:
        return f"argument {hint}: {message}"
    if named is None or not isinstance(error, typer.BadParameter):
        formatted = getattr(error, "format_message", None)
        return str(formatted()) if formatted else message or str(error)
    option = named.opts[-1].startswith("-")
    name = named.opts[-1] if option else named.metavar or named.name
    message = message.replace("Value error, ", "invalid choice: ", 1)
    return f"argument {name}: {message or 'expected one, found none'}"


def _version(asked: bool) -> None:
    if asked:
        print(f"hybrid-pages {hybrid_pages.__version__}")
        sys.exit(0)


@app.callback()
def everything(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Prefix cache for hybrid models: pages and checkpoints outside GPU memory."""


@app.command()
def info(as_json: Json = False) -> int:
    """Show what is installed and whether it works together."""
    return installed.run(as_json=as_json)


@app.command()
def demo(
    as_json: Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the engine's output.")] = False,
    runs: Annotated[
        int,
        typer.Option(parser=read(whole(1000)), metavar="N", help="Runs a time is the median of."),
    ] = 1,
    host_gb: Annotated[float, _HOST_GB] = 0.25,
) -> int:
    """Restore prefixes on a real vLLM engine with a tiny model made here."""
    if not installed.engine_fits("demo"):
        return 2
    from hybrid_pages.demo.main import run

    return run(SimpleNamespace(json=as_json, verbose=verbose, runs=runs, host_gb=host_gb))


@app.command()
def serve(
    port: Annotated[
        int, typer.Option(parser=read(whole(65535)), metavar="PORT", help="Port to listen on.")
    ] = 8000,
    host_gb: Annotated[float, _HOST_GB] = 0.25,
    plain: Annotated[
        bool, typer.Option("--plain", help="The same server without hybrid-pages, to compare.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the server's output.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print where it listens as JSON, once it does.")
    ] = False,
    vllm: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Argument(metavar="[-- ARGUMENT...]", help="More arguments of `vllm serve`."),
    ] = None,
) -> int:
    """Run vLLM's OpenAI server with a tiny model made here, and show requests to send."""
    if not installed.engine_fits("serve"):
        return 2
    from hybrid_pages.demo.serve import run

    return run(
        SimpleNamespace(
            port=port,
            host_gb=host_gb,
            plain=plain,
            verbose=verbose,
            json=as_json,
            vllm=vllm or [],
        )
    )


add_to(app)


@app.command("mlx-server", add_help_option=False)
def mlx_server() -> None:
    """Run mlx-lm's server with a prompt cache that keeps recurrent states."""
    # Only listed here. `main` runs it, since it needs mlx-lm alone and its flags are mlx-lm's.


@app.command("vllm-mlx", add_help_option=False)
def vllm_mlx() -> None:
    """Run vllm-mlx's server with a prompt cache that keeps recurrent states."""
    # Only listed here, as `mlx-server`.


app.add_typer(store, name="store")
key.add_to(app)

_DISK = typer.Argument(metavar="PATH", help="The engines' disk_path.")


def _store(action: str, **options: object) -> int:
    from hybrid_pages.store.main import run

    return run(SimpleNamespace(action=action, **options))


@store.command()
def inspect(path: Annotated[str, _DISK], as_json: Json = False) -> int:
    """Show lanes, identities, entries and sizes; an engine may be running."""
    return _store("inspect", path=path, json=as_json)


@store.command()
def verify(
    path: Annotated[str, _DISK],
    as_json: Json = False,
    encrypt_key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="FILE",
            help="The engines' encrypt_key, to open what is encrypted. Without it only headers are "
            "compared there.",
        ),
    ] = None,
) -> int:
    """Read every entry and compare it with its checksums.

    Changes nothing, and an engine may be running. Exit status 1 if something is damaged or can't be
    read.
    """
    return _store("verify", path=path, json=as_json, encrypt_key=encrypt_key)


@store.command()
def gc(
    path: Annotated[str, _DISK],
    as_json: Json = False,
    unused_for: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=read(whole(36_500)),
            metavar="DAYS",
            help="Remove identities, too, that no engine has changed for so many days.",
        ),
    ] = None,
    lanes: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            parser=read(whole(1 << 20)),
            metavar="N",
            help="Remove lanes, too, that engine cores beyond the first N had.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Remove nothing, only show it.")
    ] = False,
) -> int:
    """Remove what was cleared or set aside, in lanes that no engine uses.

    Exit status 1 if something can't be removed.
    """
    return _store(
        "gc", path=path, json=as_json, unused_for=unused_for, lanes=lanes, dry_run=dry_run
    )
