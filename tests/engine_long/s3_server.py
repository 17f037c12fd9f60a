"""A real S3 server on loopback, for one test."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest

KEY, SECRET = "AKIATESTTESTTEST", "a-secret-that-nobody-may-read"
BUCKET = "prefixes"


class S3:
    """A server with an empty bucket, and the environment that leads there."""

    def __init__(self, url: str) -> None:
        self.environment = {
            "AWS_ENDPOINT_URL": url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
        )
        self._client.create_bucket(Bucket=BUCKET)

    def names(self) -> list[str]:
        """The keys of all objects."""
        found = self._client.list_objects_v2(Bucket=BUCKET)
        return [item["Key"] for item in found.get("Contents", ())]


@pytest.fixture
def s3() -> Iterator[S3]:
    """An S3 server in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/moto-api/data.json").close()
                break
            except OSError:
                assert time.monotonic() < end and process.poll() is None, "S3 did not start"
                time.sleep(0.1)
        yield S3(url)
    finally:
        process.kill()
        process.wait()
