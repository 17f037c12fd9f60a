"""Entries in a store that engines share: a real S3 server over HTTP, and a directory."""

from __future__ import annotations

import http.client
import http.server
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from cache_support import SLOT_BYTES, hybrid, keys, whole
from hybrid_pages import Arena, Cache, InvalidArgumentError, Remote, RemoteError, checksum

SLOTS = 64
IDENTITY = bytes(range(32))
KEY, SECRET = "AKIATESTTESTTEST", "a-secret-that-nobody-may-read"


class Engine:
    """What an engine's process has: an arena, and a cache over a store."""

    def __init__(
        self, url: str, *, identity: bytes = IDENTITY, admit: str = "all", connects: bool = True
    ) -> None:
        geometry = hybrid()
        self.arena = Arena.create(geometry, slot_bytes=SLOT_BYTES, slots=SLOTS)
        self.remote = Remote(
            geometry, slot_bytes=SLOT_BYTES, url=url, deadline_ms=20_000, admit=admit
        )
        self.cache = Cache(geometry, slot_bytes=SLOT_BYTES, slots=SLOTS, remote=self.remote)
        self.namespace = self.cache.namespace(b"engine")
        if connects:
            self.remote.connect(self.arena, identity)

    def store(self, prompt: str, *, waits: bool = True) -> None:
        with self.cache.reserve(self.namespace, keys(prompt), whole(prompt)) as lease:
            sums = []
            for entry in lease.entries:
                data = payload(prompt, entry.class_index, entry.block_index)
                for at, slot in enumerate(entry.slots):
                    self.arena.write(slot, data[at * SLOT_BYTES :][:SLOT_BYTES])
                sums.append([checksum(data)])
            lease.commit(sums)
        if waits:
            assert self.remote.settle(60), (self.remote.stats(), self.remote.notes())
            self.cache.poll()

    def restore(self, prompt: str) -> int:
        """Waits until the store has answered, loads what is there, and compares it."""
        limit = time.monotonic() + 60
        while self.cache.lookup(self.namespace, keys(prompt)).asking:
            assert time.monotonic() < limit, "no answer"
            time.sleep(0.001)
        while self.cache.promote(self.namespace, keys(prompt)):
            assert time.monotonic() < limit, "a promotion did not end"
            time.sleep(0.001)
        lease = self.cache.acquire(self.namespace, keys(prompt))
        if lease is None:
            return 0
        with lease:
            for entry in lease.entries:
                expected = payload(prompt, entry.class_index, entry.block_index)
                data = b"".join(self.arena.read(slot) for slot in entry.slots)
                assert data[: len(expected)] == expected
            return lease.blocks


def payload(prompt: str, kind: int, block: int) -> bytes:
    seed = f"{prompt[: block + 1]} {kind} ".encode()
    size = 64 if kind == 0 else 160
    return (seed * size)[:size]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def s3(server: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of one's own, beside the environment that the package reads."""
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3", endpoint_url=server, region_name="us-east-1")
    client.create_bucket(Bucket="prefixes")
    yield client
    with urllib.request.urlopen(f"{server}/moto-api/reset", data=b""):
        pass


def names(client: Any) -> list[str]:
    found = client.list_objects_v2(Bucket="prefixes").get("Contents", [])
    return [item["Key"] for item in found]


def packs(client: Any) -> list[str]:
    return [name for name in names(client) if name.endswith(".pack")]


def test_one_engine_restores_from_s3_what_another_has_stored(s3):
    first, second = Engine("s3://prefixes/team a"), Engine("s3://prefixes/team a")
    first.store("abcdef")
    assert second.restore("abcdefg") == 6
    stats = second.remote.stats()
    assert stats["reads"] == 7
    assert stats["failed_read"] == stats["failed_table"] == 0
    assert all(name.startswith("team a/hybrid-pages-v1/") for name in names(s3))
    assert second.restore("xyz") == 0
    assert Engine("s3://prefixes/team b").restore("abcdef") == 0
    assert Engine("s3://prefixes/team a", identity=bytes(32)).restore("abcdef") == 0


def test_more_packs_than_a_page_of_a_listing_are_all_found(s3, monkeypatch):
    engine = Engine("s3://prefixes/many")
    prompts = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(12)]
    for prompt in prompts:
        engine.store(prompt)
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "5")
    assert len(packs(s3)) == 5
    other = Engine("s3://prefixes/many")
    assert [other.restore(prompt) for prompt in prompts] == [2] * 12


def test_damaged_objects_are_refused(s3):
    Engine("s3://prefixes").store("abc")
    (name,) = packs(s3)
    whole_object = s3.get_object(Bucket="prefixes", Key=name)["Body"].read()
    for at in (0, 50, 200, len(whole_object) // 2, len(whole_object) - 1):
        damaged = bytearray(whole_object)
        damaged[at] ^= 1
        s3.put_object(Bucket="prefixes", Key=name, Body=bytes(damaged))
        engine = Engine("s3://prefixes")
        assert engine.restore("abc") < 3
        stats = engine.remote.stats()
        assert stats["failed_table"] + stats["failed_checksum"] > 0
    s3.put_object(Bucket="prefixes", Key=name, Body=whole_object)
    assert Engine("s3://prefixes").restore("abc") == 3


def test_an_object_that_was_deleted_is_a_miss(s3):
    Engine("s3://prefixes").store("abc")
    engine = Engine("s3://prefixes")
    assert engine.cache.lookup(engine.namespace, keys("abc")).asking
    limit = time.monotonic() + 60
    while engine.remote.stats()["packs"] == 0:
        assert time.monotonic() < limit
        time.sleep(0.001)
    for name in packs(s3):
        s3.delete_object(Bucket="prefixes", Key=name)
    assert engine.restore("abc") == 0


def test_an_object_that_another_has_overwritten_is_a_miss(s3):
    """As a process would that has the number of another."""
    Engine("s3://prefixes").store("abc")
    (name,) = packs(s3)
    Engine("s3://prefixes/other").store("xyz")
    (other,) = set(packs(s3)) - {name}
    engine = Engine("s3://prefixes")
    limit = time.monotonic() + 60
    while engine.cache.lookup(engine.namespace, keys("abc")).blocks < 3:
        assert time.monotonic() < limit
        time.sleep(0.001)
    s3.copy_object(Bucket="prefixes", Key=name, CopySource={"Bucket": "prefixes", "Key": other})
    assert engine.restore("abc") == 0
    stats = engine.remote.stats()
    assert stats["failed_checksum"] > 0 and stats["outages"] == 0
    assert Engine("s3://prefixes").restore("abc") == 0


def test_an_idle_process_completes_its_uploads(s3):
    engine = Engine("s3://prefixes")
    engine.store("abc", waits=False)
    # Nobody calls the cache, or the store, any more.
    limit = time.monotonic() + 60
    while not packs(s3):
        assert time.monotonic() < limit
        time.sleep(0.01)
    assert Engine("s3://prefixes").restore("abc") == 3


FORKED = """
import os, sys
from test_remote import IDENTITY, Engine

engine = Engine(sys.argv[1], connects=False)
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
engine.remote.connect(engine.arena, IDENTITY)
engine.store("abc" if child else "xyz")
os._exit(0)
"""


def test_a_forked_process_writes_under_a_number_of_its_own(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FORKED, tmp_path.as_uri()]
    subprocess.run(command, env=environment, check=True, timeout=120)
    names = [path.name for path in tmp_path.rglob("*.pack")]
    assert len(names) == len({name.split("-")[1] for name in names}) == 2


def test_a_reset_takes_back_what_was_written(s3):
    first, second = Engine("s3://prefixes"), Engine("s3://prefixes")
    first.store("abc")
    assert second.restore("ab") == 0
    first.cache.clear()
    assert first.remote.settle(60)
    assert packs(s3) == []
    assert first.remote.stats()["shared"] == 0
    assert Engine("s3://prefixes").restore("abc") == 0


def test_no_secret_is_told(s3):
    engine = Engine("s3://no-such-bucket/x")
    engine.store("abc")
    assert engine.remote.stats()["writes"] == 0
    told = [repr(engine.remote), engine.remote.place]
    limit = time.monotonic() + 60
    while not any("'list'" in note for note in told):
        engine.cache.lookup(engine.namespace, keys("abc"))
        told += engine.remote.notes()
        assert time.monotonic() < limit, told
        time.sleep(0.01)
    assert any("'write'" in note for note in told)
    assert not any(SECRET in text or KEY in text for text in told)


class Gate(http.server.ThreadingHTTPServer):
    """Passes requests on to a server, or answers them itself."""

    def __init__(self, server: str) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.behind = server.removeprefix("http://")
        self.answer: tuple[int, dict[str, str], str] | None = None
        self.asked = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Passing(http.server.BaseHTTPRequestHandler):
    server: Gate
    protocol_version = "HTTP/1.1"

    def pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.asked += 1
        if self.server.answer is not None:
            status, headers, text = self.server.answer
            data = text.encode()
        else:
            behind = http.client.HTTPConnection(self.server.behind)
            behind.request(self.command, self.path, body, dict(self.headers))
            found = behind.getresponse()
            status, headers, data = found.status, dict(found.headers), found.read()
            behind.close()
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        length = headers.get("content-length", len(data)) if self.command == "HEAD" else len(data)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = pass_on

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def gate(s3: Any, server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(server)
    monkeypatch.setenv("AWS_ENDPOINT_URL", gate.url)
    yield gate
    gate.shutdown()
    gate.server_close()


def told(engine: Engine, part: str) -> str:
    """Looks prompts up until the notes have that in them."""
    notes = ""
    limit = time.monotonic() + 60
    while part not in notes:
        engine.cache.lookup(engine.namespace, keys("other"))
        engine.cache.poll()
        notes += "\n".join(engine.remote.notes())
        assert time.monotonic() < limit, notes
        time.sleep(0.01)
    assert SECRET not in notes and KEY not in notes
    return notes


@pytest.mark.parametrize("status", [503, 429])
def test_a_server_that_throttles_is_left_alone_and_used_again(gate, status):
    Engine("s3://prefixes").store("abcdef")
    code = "<Error><Code>SlowDown</Code><Message>Reduce your rate.</Message></Error>"
    gate.answer = (status, {"Retry-After": "1"}, code)
    engine = Engine("s3://prefixes")
    assert str(status) in told(engine, "left alone")
    assert engine.remote.stats()["out"] == 1
    asked = gate.asked
    for _ in range(20):
        assert engine.restore("abcdef") == 0
    assert gate.asked - asked <= 5
    gate.answer = None
    limit = time.monotonic() + 60
    while engine.restore("abcdef") < 6:
        assert time.monotonic() < limit, engine.remote.stats()
        time.sleep(0.05)


def test_credentials_that_are_refused_are_told_early_and_not_repeated(gate):
    said = (
        f"<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>{KEY}</AWSAccessKeyId></Error>"
    )
    gate.answer = (403, {"Content-Type": "application/xml"}, said)
    engine = Engine("s3://prefixes")
    notes = told(engine, "'list'")
    assert "give the client credentials" in notes
    engine.store("abc")
    assert "'write'" in told(engine, "'write'")


def test_secrets_that_have_left_the_environment_are_not_told_either(gate, monkeypatch):
    engine = Engine("s3://prefixes")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    gate.answer = (403, {}, f"<Error><Code>{KEY} {SECRET}</Code></Error>")
    assert "(not told) (not told)" in told(engine, "'list'")


def test_a_bucket_that_is_missing_is_told(s3):
    assert "make the bucket" in told(Engine("s3://no-such-bucket/x"), "'list'")


def test_without_credentials_that_is_told(gate, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", gate.url)
    gate.answer = (404, {}, "")
    assert "no credentials" in told(Engine("s3://prefixes"), "'list'")


@pytest.mark.parametrize("prefix", ["a%20b/%C3%BC", "a+b=c", "x/y/", "100%25", "_.-~!*'()"])
def test_prefixes_may_have_odd_characters(s3, tmp_path, prefix):
    for url in (f"s3://prefixes/{prefix}", f"file://{tmp_path}/{prefix.replace('/', '%20')}"):
        Engine(url).store("abc")
        assert Engine(url).restore("abc") == 3


def test_a_server_that_is_not_there_costs_nothing_but_misses(s3, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    engine = Engine("s3://prefixes")
    limit = time.monotonic() + 60
    while not engine.remote.stats()["out"]:
        engine.cache.lookup(engine.namespace, keys("abc"))
        engine.cache.poll()
        assert time.monotonic() < limit, engine.remote.stats()
        time.sleep(0.01)
    assert engine.restore("abc") == 0
    engine.store("abc")
    assert engine.remote.stats()["outages"] == 1


def test_without_permission_for_http_nothing_is_sent(s3, monkeypatch):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    engine = Engine("s3://prefixes")
    engine.store("abc")
    assert engine.remote.stats()["writes"] == 0
    assert packs(s3) == []


def test_a_server_that_cannot_be_reached_is_told_with_the_reason(s3, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    assert "Connection refused" in told(Engine("s3://prefixes"), "'list'")
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    assert "set AWS_ALLOW_HTTP=true if" in told(Engine("s3://prefixes"), "'list'")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("AWS_ENDPOINT_URL", f"{SECRET}:9000", "https://HOST"),
        ("AWS_ENDPOINT_URL", "", "https://HOST"),
        ("AWS_ENDPOINT_URL_S3", "minio:9000", "https://HOST"),
        ("AWS_REGION", "us east", "the name of a region"),
        ("AWS_ACCESS_KEY_ID", f"{KEY}\n", "one line"),
        ("AWS_SECRET_ACCESS_KEY", f"{SECRET}\n", "one line"),
        ("AWS_SESSION_TOKEN", f"{SECRET}\r", "one line"),
    ],
)
def test_an_environment_that_no_client_can_use_is_refused_at_once(
    s3, monkeypatch, name, value, expected
):
    monkeypatch.setenv(name, value)
    with pytest.raises(RemoteError, match=f"{name} in the environment: expected {expected}") as e:
        Engine("s3://prefixes")
    assert SECRET not in str(e.value) and KEY not in str(e.value)


def test_a_directory_is_shared(tmp_path):
    url = f"file://{tmp_path}/shared"
    Engine(url).store("abc")
    assert Engine(url).restore("abcd") == 3


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://host/x", "s3://BUCKET"),
        ("s3://name:hidden@bucket", "credentials go into the environment"),
        ("s3://bucket?token=hidden", "settings go into the environment"),
        ("file://host/x", "file:///"),
        ("file:///", "name a directory below it"),
        ("s3://bucket//x", "'//' in the prefix"),
    ],
)
def test_urls_that_name_no_store_are_refused(url, said):
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        Remote(hybrid(), slot_bytes=SLOT_BYTES, url=url)
    assert "hidden" not in str(caught.value)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path):
    with pytest.raises(RemoteError, match="expected a directory"):
        Remote(hybrid(), slot_bytes=SLOT_BYTES, url=f"file://{tmp_path}/a/b")
    (tmp_path / "file").write_text("x")
    with pytest.raises(RemoteError, match="expected a directory"):
        Remote(hybrid(), slot_bytes=SLOT_BYTES, url=f"file://{tmp_path}/file")


def test_admission_has_two_kinds(tmp_path):
    with pytest.raises(InvalidArgumentError, match="expected one of auto, all"):
        Engine(f"file://{tmp_path}/x", admit="some")
