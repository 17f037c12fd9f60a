"""vLLM's OpenAI server as commands see it: models, a key, metrics, and answers of a test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Protocol


class MadeUpEngine(Protocol):
    """What a test decides."""

    key: str
    """The key that requests need; empty for none."""
    models: tuple[str, ...]
    """The model, and adapters, of which vLLM does not tell how long a prompt may be."""
    parent: str
    """What adapters name as their model."""
    most: int
    """The longest prompt with its answer."""

    def exposed(self) -> str:
        """The metrics."""

    def post(self, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        """The status of a request and what is said."""


@contextmanager
def serving(engine: MadeUpEngine) -> Iterator[str]:
    """Serves on this machine; gives the address."""

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, said: Any) -> None:
            body = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self.reply(200, engine.exposed())
            elif engine.key and self.headers["Authorization"] != f"Bearer {engine.key}":
                self.reply(401, {"error": "Unauthorized"})
            else:
                models = [
                    {"id": name, "max_model_len": None, "parent": engine.parent}
                    if at
                    else {"id": name, "max_model_len": engine.most, "parent": None}
                    for at, name in enumerate(engine.models)
                ]
                self.reply(200, {"data": models})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply(*engine.post(self.path, body, self.headers))

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
