"""Real engines that share a bucket of a real S3 server."""

from __future__ import annotations

import os
import time

from s3_server import SECRET, s3  # noqa: F401
from test_disk_kills import SECOND_RUNNER

from remote_peers import Peer


def test_an_engine_gives_what_the_local_hit_gives_for_what_another_put_into_s3(
    s3,  # noqa: F811
    model,
    monkeypatch,
):
    for name in set(SECOND_RUNNER) & os.environ.keys():
        monkeypatch.delenv(name)
    folder = model("qwen3.5")
    first = Peer(folder, "s3://prefixes/team", "kv_both", s3.environment)
    second = Peer(folder, "s3://prefixes/team", "kv_both", s3.environment)
    try:
        assert first.run("a") == 0
        time.sleep(1.1)  # what the second knows gets old
        second.check("a")
        assert second.run("b") == 0
        time.sleep(1.1)
        first.check("b")
        assert any(name.endswith(".pack") for name in s3.names())
        for peer in (first, second):
            assert SECRET not in "".join(peer.lines)
    finally:
        first.end()
        second.end()
