"""Real engines that share a bucket of a real S3 server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import boto3
import pytest
from test_disk_kills import SECOND_RUNNER

from remote_peers import Peer

KEY, SECRET = "AKIATESTTESTTEST", "a-secret-that-nobody-may-read"


@pytest.fixture
def server() -> Iterator[str]:
    """An S3 server in a process of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(f"{url}/moto-api/data.json").close()
            break
        except OSError:
            assert time.monotonic() < end and process.poll() is None, "the S3 server did not start"
            time.sleep(0.1)
    yield url
    process.kill()
    process.wait()


def test_an_engine_gives_what_the_local_hit_gives_for_what_another_put_into_s3(
    server, model, monkeypatch
):
    for name in set(SECOND_RUNNER) & os.environ.keys():
        monkeypatch.delenv(name)
    environment = {
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    client = boto3.client(
        "s3",
        endpoint_url=server,
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )
    client.create_bucket(Bucket="prefixes")
    folder = model("qwen3.5")
    first = Peer(folder, "s3://prefixes/team", "kv_both", environment)
    second = Peer(folder, "s3://prefixes/team", "kv_both", environment)
    try:
        assert first.run("a") == 0
        time.sleep(1.1)  # what the second knows gets old
        second.check("a")
        assert second.run("b") == 0
        time.sleep(1.1)
        first.check("b")
        names = [item["Key"] for item in client.list_objects_v2(Bucket="prefixes")["Contents"]]
        assert any(name.endswith(".pack") for name in names)
        for peer in (first, second):
            assert SECRET not in "".join(peer.lines)
    finally:
        first.end()
        second.end()
