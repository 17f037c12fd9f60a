"""The screenshots in `docs/images/`: each runs its command in a terminal and draws what it shows.

Run by `make docs-screenshots`, in the environment that has vLLM: `top` looks at an engine, with the
prompts of a first and a second visit behind it.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from hybrid_pages.demo.serve import MODEL
from hybrid_pages.demo.visits import lines

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
COMMAND = Path(sys.executable).parent / "hybrid-pages"
QWEN = "docs/models/configs/qwen3.6-27b.json"
FLAG = '{"kv_connector":"HybridPagesConnector","kv_role":"kv_both"}'
PORT = 8047
URL = f"http://127.0.0.1:{PORT}"


def shown(words: Sequence[str], columns: int) -> str:
    """What a command writes to a terminal of so many columns, colours included."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm-256color"}
    with subprocess.Popen(
        [COMMAND, *words], cwd=ROOT, env=environment, stdout=theirs, stderr=subprocess.DEVNULL
    ):
        os.close(theirs)
        parts = []
        # A terminal whose other end is closed has nothing more to read.
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:
            pass
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def draw(name: str, words: Sequence[str], columns: int = 110) -> None:
    """Writes the picture of a command. Its font is whatever the reader has: none is fetched."""
    console = Console(record=True, width=columns, file=StringIO())
    console.print(Text.from_ansi(shown(words, columns).rstrip("\n")))
    title = "hybrid-pages " + " ".join(words).replace(FLAG, "'{...}'")
    picture = console.export_svg(title=title, clear=True)
    picture = re.sub(r"@font-face\s*\{[^}]*\}\s*", "", picture)
    (IMAGES / f"{name}.svg").write_text(picture)


@contextmanager
def engine() -> Iterator[None]:
    """The tiny chat model, served, with its two visits made."""
    words = [COMMAND, "serve", "--json", "--port", str(PORT)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            # Written once it serves.
            assert server.stdout.readline(), "the server did not start: see above"
            for _, line in lines(URL, MODEL):
                subprocess.run(["bash", "-c", line], check=True, stdout=subprocess.DEVNULL)
            yield
        finally:
            server.terminate()


def main() -> None:
    """Draws all of them, or those that are named."""
    wanted = set(sys.argv[1:]) or {"plan", "doctor", "demo", "top"}
    if "plan" in wanted:
        draw("plan", ["plan", QWEN, "--host-gb", "64", "--disk-gb", "500"], 118)
    if "doctor" in wanted:
        serve = ["vllm", "serve", QWEN, "--max-num-batched-tokens", "512"]
        draw("doctor", ["doctor", "--", *serve, "--kv-transfer-config", FLAG])
    if "demo" in wanted:
        draw("demo", ["demo"], 150)
    if "top" in wanted:
        with engine():
            draw("top", ["top", "--once", "--url", URL], 84)


if __name__ == "__main__":
    main()
