"""The setting ``encrypt_key``, and two tenants of a store whose disk is encrypted."""

import codecs
import hashlib
import json
import logging
import os
import re
import stat

import pytest

from hybrid_pages import DiskError, Geometry, Group, Layer, Segment, checksum, cli
from hybrid_pages._core import encrypt_key_ids
from hybrid_pages.adapter.encryption import read_keys, tell_of_keys
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.store import EntryStore
from hybrid_pages.adapter.tiers import TierSettings
from hybrid_pages.vllm.config.settings import Settings

MAIN = "00112233445566778899aabbccddeeff" * 2
OTHER = "10112233445566778899aabbccddeeff" * 2
GEOMETRY = Geometry(
    block_tokens=16,
    groups=[Group("attention", [Layer("0", [Segment("kv", "uint8", [512])])])],
    identity={},
)
KEY = b"k" * 32


def test_keys_come_from_a_file_or_a_variable(tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_text(MAIN + "\n")
    assert read_keys("") == ""
    assert read_keys(str(path)).strip() == MAIN
    monkeypatch.setenv("KEYS_OF_A_TEST", MAIN)
    assert read_keys("env:KEYS_OF_A_TEST") == MAIN


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected a line with a key"),
        (MAIN[1:], "line 1: expected a key of 64 hexadecimal digits"),
        (f"{MAIN}\n{OTHER}", "line 2: expected one key for all"),
        (f"{MAIN}\ntenant someone {OTHER}", "line 2: expected a key"),
        (f"{MAIN}\n\xff\0", "line 2: expected a key"),
    ],
)
def test_a_file_without_a_key_is_refused_without_being_repeated(tmp_path, text, said):
    path = tmp_path / "key"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(SettingsError, match=f"^encrypt_key: {re.escape(said)}") as error:
        read_keys(str(path))
    assert "223344" not in str(error.value)


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ],
)
def test_a_byte_order_mark_is_named(tmp_path, monkeypatch, mark, encoding):
    path = tmp_path / "key"
    path.write_bytes(mark + MAIN.encode(encoding))
    said = r"^encrypt_key: expected plain UTF-8, found a byte order mark at the start of "
    with pytest.raises(SettingsError, match=said + re.escape(repr(str(path)))):
        read_keys(str(path))
    monkeypatch.setenv("KEYS_OF_A_TEST", f"\ufeff{MAIN}")
    with pytest.raises(SettingsError, match=f"{said}'env:KEYS_OF_A_TEST'") as error:
        read_keys("env:KEYS_OF_A_TEST")
    assert "223344" not in str(error.value)


CONTENTS = [
    MAIN,
    f"env:{MAIN}",
    f"{MAIN}\n",
    f"tenant {MAIN} {OTHER}",
    f"{MAIN}              # the key for all\ntenants {OTHER}  # all grow from it\nstore prod-eu\n",
    f"{MAIN}\nstore prod_eu\n",
    f"{MAIN}\nstore kv.eu:1",
    f'"{MAIN}"',
    f"env:'{MAIN}'",
    f"hex:{MAIN}",
    f"KEY_NAME={MAIN}",
    f"[{MAIN}]",
    f"{MAIN}\0",
    f"/key\n{MAIN}",
]
"""What somebody may give who takes ``encrypt_key`` for the keys themselves."""


@pytest.mark.parametrize("given", CONTENTS)
def test_a_key_in_the_place_of_a_name_is_not_repeated(tmp_path, monkeypatch, capsys, given):
    monkeypatch.chdir(tmp_path)
    said = r"^encrypt_key: expected .* not repeated"
    disk = {"disk_path": str(tmp_path / "disk"), "disk_gb": 1, "encrypt_key": given}
    for use in (
        lambda: read_keys(given),
        lambda: TierSettings.read(host_gb=1, **disk).require_places(),
        lambda: Settings.parse(disk).tiers.require_places(),
    ):
        with pytest.raises(SettingsError, match=said) as error:
            use()
        assert "223344" not in str(error.value)
    (tmp_path / "hybrid-pages-disk").write_text("hybrid-pages disk store, format 1\n")
    for words in (
        ["store", "verify", str(tmp_path), "--encrypt-key", given],
        ["key", "destroy", given.rstrip("\0"), "--salt", ""],
        ["doctor", "--", "vllm", "serve", "m", "--kv-transfer-config", f"{{{json.dumps(disk)}"],
    ):
        assert cli.main(words) == 2
        assert "223344" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("given", [MAIN.encode(), bytes.fromhex(MAIN), [MAIN], {MAIN: 1}])
def test_of_a_key_of_the_wrong_type_only_the_type_is_told(given):
    setting = {"disk_path": "/a", "disk_gb": 1, "encrypt_key": given}
    said = f"^encrypt_key: expected [a-z ]+, found something of type {type(given).__name__}$"
    with pytest.raises(SettingsError, match=said):
        TierSettings.read(host_gb=1, **setting)
    with pytest.raises(SettingsError, match=said):
        Settings.parse(setting)


def test_names_are_repeated():
    for name in (
        "/run/secrets/hybrid-pages/" + "a" * 64,
        "env:KEY_OF_HYBRID_PAGES_IN_PRODUCTION",
        "keys/prod.key",
    ):
        with pytest.raises(SettingsError, match=re.escape(repr(name))):
            read_keys(name)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match=r"^encrypt_key: expected a key file, found .* a pipe"):
        read_keys(str(tmp_path / "pipe"))


def test_a_variable_with_other_bytes_than_text_is_refused(monkeypatch):
    monkeypatch.setenv("KEYS_OF_A_TEST", os.fsdecode(MAIN.encode() + b"\xff"))
    with pytest.raises(SettingsError, match=r"^encrypt_key: line 1: expected a key") as error:
        read_keys("env:KEYS_OF_A_TEST")
    assert "223344" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"disk_path": "", "encrypt_key": "/key"}, "expected disk_path or remote_url beside it"),
        ({"remote_url": "mooncake://host:1", "encrypt_key": "/key"}, "Mooncake copies straight"),
        ({"disk_path": "/a", "disk_gb": 1, "encrypt_key": 3}, "found something of type int"),
    ],
)
def test_a_setting_without_a_place_for_it_is_refused(given, said):
    with pytest.raises(SettingsError, match=f"^encrypt_key: .*{said}"):
        TierSettings.read(host_gb=1, **given)
    if isinstance(given["encrypt_key"], str):
        with pytest.raises(SettingsError, match=f"^encrypt_key: .*{said}"):
            Settings.parse(given)


@pytest.mark.parametrize("name", ["missing", "env:NO_SUCH_VARIABLE", ".", "\0", "env:"])
def test_a_place_without_keys_is_refused_at_the_start(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"^encrypt_key: expected "):
        TierSettings.read(
            host_gb=1, disk_path=tmp_path / "disk", disk_gb=0.001, encrypt_key=name
        ).require_below()
    assert os.listdir(tmp_path) == []


def test_vllm_tells_tenants_apart_if_their_entries_are_encrypted():
    assert not Settings.parse({}).tells_tenants_apart
    assert Settings.parse({"tenant_share": 0.5}).tells_tenants_apart
    given = {"disk_path": "/a", "disk_gb": 1, "encrypt_key": "/key"}
    assert Settings.parse(given).tells_tenants_apart


@pytest.fixture
def opened(tmp_path):
    """Opens a store over one disk, with the text of a key file."""
    stores = []

    def open_store(text):
        (tmp_path / "key").write_text(text)
        key = str(tmp_path / "key") if text else None
        tiers = TierSettings.read(
            host_gb=0.001, disk_path=tmp_path / "disk", disk_gb=0.001, encrypt_key=key
        )
        log = logging.getLogger("a test")
        stores.append(EntryStore(GEOMETRY, tiers, policy="lru", facts={}, log=log))
        return stores[-1]

    yield open_store
    for store in stores:
        store.close()


def test_a_start_warns_once_of_a_key_file_that_others_may_use(opened, tmp_path, caplog):
    path = tmp_path / "key"
    path.touch()
    for mode in (0o600, 0o640, 0o644, 0o620):
        path.chmod(mode)
        caplog.clear()
        opened(MAIN).close()
        warned = [record.getMessage() for record in caplog.records]
        expected = (
            f"encrypt_key: expected a key file for its owner alone, found the mode {mode:04o} at "
            f"{str(path)!r}: take the permissions of others away: chmod 600"
        )
        assert warned == ([expected] if mode & 0o77 else []), oct(mode)


def test_a_start_tells_which_keys_it_has(opened, tmp_path, caplog):
    def told(text):
        (tmp_path / "key").touch(mode=0o600)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            opened(text).close()
        (said,) = (record.getMessage() for record in caplog.records)
        found = re.fullmatch("encrypt_key: the key (\\w{16}), in the key file (\\w{16})", said)
        return found.groups()

    grown = f"{MAIN}\ntenants {OTHER}"
    key, file = told(f"{grown}\nstore prod")
    assert told(f"# the same\nstore prod\n{grown}") == (key, file)
    (tmp_path / "made").write_text(f"{grown}\nstore prod")
    assert cli.main(["key", "destroy", str(tmp_path / "made"), "--salt", "one"]) == 0
    less = (tmp_path / "made").read_text()
    others = [told(text) for text in (f"{grown}\nstore prd", f"{MAIN}\ntenants {KEY.hex()}", less)]
    assert [other[0] for other in others] == [key] * 3
    assert len({file, *(other[1] for other in others)}) == 4
    caplog.clear()
    with caplog.at_level(logging.INFO):
        tell_of_keys("", logging.getLogger("a test"))
    assert not caplog.records


def keep(store, salt):
    page = hashlib.shake_256(salt.encode()).digest(512)
    with store.using(salt, "state") as namespace:
        lease = store.index.reserve(namespace, [KEY], [(0, 0)])
        (entry,) = lease.entries
        for at, slot in enumerate(entry.slots):
            size = store.arena.slot_bytes
            store.arena.write(slot, page[at * size : (at + 1) * size])
        lease.commit([[checksum(page)]])


def has(store, salt):
    with store.using(salt, "state") as namespace:
        return store.index.lookup(namespace, [KEY]).blocks == 1


def test_a_tenant_is_destroyed_with_its_line_and_a_wrong_key_is_refused(opened):
    line = f"tenant {hashlib.sha256(b'one').hexdigest()} {OTHER}"
    with opened(f"{MAIN}\n{line}") as store:
        for salt in ("", "one", "two"):
            keep(store, salt)
    with opened(f"{MAIN}\n{line}") as store:
        assert [has(store, salt) for salt in ("", "one", "two")] == [True] * 3
    with opened(MAIN) as store:
        assert [has(store, salt) for salt in ("", "one", "two")] == [True, False, True]
    for text in (OTHER, ""):
        with pytest.raises(DiskError, match=r"expected encrypt_key with the key [0-9a-f]{16}"):
            opened(text)


@pytest.mark.parametrize("given", ["", " "])
def test_a_key_that_is_given_but_empty_is_refused(tmp_path, capsys, given):
    disk = {"disk_path": str(tmp_path / "disk"), "disk_gb": 0.001}
    said = r"^encrypt_key: expected a key file, .* found ' ?': leave it out"
    with pytest.raises(SettingsError, match=said):
        Settings.parse({**disk, "encrypt_key": given})
    with pytest.raises(SettingsError, match=said):
        TierSettings.read(host_gb=1, encrypt_key=given, **disk)
    assert TierSettings.read(host_gb=1, **disk).encrypt_key == ""
    (tmp_path / "hybrid-pages-disk").write_text("hybrid-pages disk store, format 1\n")
    assert cli.main(["store", "verify", str(tmp_path), "--encrypt-key", given]) == 2
    assert "encrypt_key: expected a key file" in capsys.readouterr().err


def test_a_tenant_is_destroyed_by_the_command_and_others_stay(opened, tmp_path, capsys):
    path = tmp_path / "made"
    assert cli.main(["key", "new", str(path), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    whole = path.read_text()
    with opened(whole) as store:
        for salt in ("", "one", "two"):
            keep(store, salt)
    path.chmod(0o640)
    os.link(path, tmp_path / "other name")
    (tmp_path / "link").symlink_to(path)
    digest = hashlib.sha256(b"one").hexdigest()
    assert cli.main(["key", "destroy", str(tmp_path / "link"), "--salt", "one", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["tenant"], done["key"]) == (digest, made["key"])
    assert made.keys() | {"tenant"} == done.keys() == {"path", "key", "file", "tenant"}
    assert made["file"] != done["file"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (tmp_path / "other name").read_bytes() == bytes(len(whole))
    assert (tmp_path / "link").is_symlink()
    less = path.read_text()
    for _ in range(2):
        with opened(less) as store:
            assert [has(store, salt) for salt in ("", "one", "two")] == [True, False, True]
    with opened(less) as store:
        keep(store, "one")
    with opened(less) as store:
        assert has(store, "one"), "with its new key"
    with opened(whole) as store:
        assert [has(store, salt) for salt in ("", "one", "two")] == [True] * 3, "the old file"
    # Both tenants' entries on the disk, opened by each file.
    verify = ["store", "verify", str(tmp_path / "disk"), "--json", "--encrypt-key"]
    for text, unopened in ((whole, 1), (less, 1), (f"{MAIN}\n", None)):
        (tmp_path / "key").write_text(text)
        status = cli.main([*verify, str(tmp_path / "key")])
        printed = capsys.readouterr()
        if unopened is None:
            assert (status, "encrypt_key: expected the key" in printed.err) == (2, True)
            continue
        (found,) = json.loads(printed.out)["identities"]
        assert (status, found["good"], found["unopened"]) == (0, 4, unopened)
    assert cli.main(["key", "destroy", str(path), "--sha256", digest]) == 0
    told = capsys.readouterr().out
    assert digest in told
    assert f"in the key file {encrypt_key_ids(path.read_text())[1]}." in told
    assert "in the clear, or before the file had a `tenants` line" in told
    with opened(path.read_text()) as store:
        assert [has(store, salt) for salt in ("", "one", "two")] == [True, False, True]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["new", "key"], "FILE: expected a path where nothing is yet, found 'key': name another"),
        (["new", "env:KEY"], "expected a file, found a variable"),
        (["new", "no/such/folder"], "No such file"),
        (["destroy", "key"], "found neither: name one tenant"),
        (["destroy", "key", "--salt", "a", "--sha256", "b"], "found both: name one tenant"),
        (["destroy", "key", "--sha256", "b"], "64 hexadecimal digits"),
        (["destroy", "key", "--salt", ""], "expected a line `tenants`"),
        (["destroy", "key", "--salt", os.fsdecode(b"a\xff")], "expected a cache_salt in UTF-8"),
        (["destroy", "missing", "--salt", "a"], "No such file"),
        (["destroy", "/dev/null", "--salt", "a"], "expected a key file"),
    ],
)
def test_a_command_that_cannot_be_done_changes_nothing(tmp_path, monkeypatch, capsys, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "key").write_text(MAIN)
    assert cli.main(["key", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"hybrid-pages key {words[0]}: ")
    assert said in error
    assert "223344" not in error
    assert (tmp_path / "key").read_text() == MAIN
    assert os.listdir(tmp_path) == ["key"]
