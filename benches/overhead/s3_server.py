"""A real S3 server on loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

BUCKET = "prefixes"


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """A real S3 server on loopback, and an environment that leads there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = (
        "import time; from moto.server import ThreadedMotoServer as S; "
        f"S('127.0.0.1', {port}, verbose=False).start(); time.sleep(1e9)"
    )
    url = f"http://127.0.0.1:{port}"
    os.environ |= {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "bench",
        "AWS_SECRET_ACCESS_KEY": "bench-bench",
    }
    quiet: Any = subprocess.DEVNULL
    server = subprocess.Popen([sys.executable, "-c", program], stdout=quiet, stderr=quiet)
    try:
        make = urllib.request.Request(f"{url}/{BUCKET}", method="PUT")
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(make):
                break
            time.sleep(0.1)
        yield f"s3://{BUCKET}/bench"
    finally:
        server.kill()
        server.wait()
