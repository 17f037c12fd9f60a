"""Settings of tiers, for all adapters: what can't work is an error before anything runs."""

import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from hybrid_pages import BudgetError, DiskError, ForeignError, HybridPagesError
from hybrid_pages.adapter import memory
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.tiers import MOST_BLOCK_TOKENS, TierSettings, require_block_tokens

HUGE = 10**4000


def test_settings_that_make_sense_are_taken(tmp_path):
    tiers = TierSettings.read(host_gb=1, disk_path=tmp_path, disk_gb=0.001, disk_deadline_ms=70)
    assert (tiers.disk().path, tiers.disk().deadline_ms) == (str(tmp_path), 70)
    assert (tiers.remote(), tiers.lasting, tiers.wait_seconds) == (None, "disk_path", 0.07)
    tiers.require_here()
    assert os.listdir(tmp_path) == []
    assert TierSettings.read(host_gb="auto").host_gb > 0
    assert TierSettings.read(host_gb=1).disk() is None


def test_a_request_waits_for_the_slowest_tier_that_there_is():
    url = {"remote_url": "s3://bucket/prefix", "remote_deadline_ms": 9000}
    disk = {"disk_path": "/a", "disk_gb": 1, "disk_deadline_ms": 7}
    assert TierSettings.read(host_gb=1, **url).wait_seconds == 9
    assert TierSettings.read(host_gb=1, **disk).wait_seconds == 0.007
    assert TierSettings.read(host_gb=1, **url, **disk).wait_seconds == 9


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(
            ({"host_gb": value}, "host_gb: expected a size above 0 and below 1048576 GiB, found")
            for value in (0, -1, -0.0, float("nan"), float("inf"), float("-inf"), 1 << 20)
        ),
        *(
            ({"host_gb": value}, "host_gb: expected a number of GiB or 'auto', found")
            for value in ("4", "", None, True, [4], Decimal(4))
        ),
        ({"host_gb": HUGE}, "host_gb: expected a number of usual size"),
        *(
            ({"disk_path": "/a", "disk_gb": value}, "disk_gb: expected a quota above 0")
            for value in (0, -1, float("nan"), float("inf"), 1 << 30)
        ),
        *(
            ({"disk_gb": value}, "disk_path: expected a directory with disk_gb")
            for value in (1, -1, float("nan"))
        ),
        ({"disk_path": "/a"}, "disk_gb: expected a quota above 0"),
        ({"disk_path": "/a", "disk_gb": "1"}, "disk_gb: expected a number, found '1' of type str"),
        ({"disk_path": "/a", "disk_gb": True}, "disk_gb: expected a number, found True"),
        ({"disk_path": "/a", "disk_gb": HUGE}, "disk_gb: expected a number of usual size"),
        ({"disk_path": 3, "disk_gb": 1}, "disk_path: expected a text, found 3 of type int"),
        ({"disk_path": b"/a", "disk_gb": 1}, "disk_path: expected a text, found b'/a'"),
        ({"disk_path": None}, "disk_path: expected a text, found None"),
        ({"disk_path": "/a\0", "disk_gb": 1}, "disk_path: expected a text without NUL"),
        *(
            ({"disk_deadline_ms": value}, "disk_deadline_ms: expected 1 to 3600000 milliseconds")
            for value in (0, -1, 3_600_001)
        ),
        ({"disk_deadline_ms": 1.5}, "disk_deadline_ms: expected a whole number, found 1.5"),
        ({"disk_deadline_ms": HUGE}, "disk_deadline_ms: expected a number of usual size"),
        ({"remote_deadline_ms": 0}, "remote_deadline_ms: expected 1 to 3600000 milliseconds"),
        ({"remote_url": 3}, "remote_url: expected a text, found 3"),
        ({"remote_url": "ftp://a/b"}, "remote_url: expected s3://BUCKET/PREFIX"),
        ({"remote_url": Path("/a")}, "remote_url: expected a text, found PosixPath"),
        ({"remote_admit": "al"}, "remote_admit: expected one of 'auto', 'all', found 'al'"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_its_name(given, said):
    with pytest.raises(SettingsError, match=f"^{re.escape(said)}"):
        TierSettings.read(**{"host_gb": 1, **given})


@pytest.mark.parametrize("tokens", [0, -1, 1.0, True, "16", None, MOST_BLOCK_TOKENS + 1, HUGE])
def test_a_block_has_a_whole_number_of_tokens(tokens):
    with pytest.raises(SettingsError, match=r"^block_tokens: expected a whole number from 1 to "):
        require_block_tokens(tokens)
    assert require_block_tokens(16) == 16


def test_more_memory_than_is_free_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "limits", lambda: [memory.Free(3 << 30, "what is free")])
    TierSettings.read(host_gb=3).require_here()
    with pytest.raises(BudgetError, match=r"expected at most what is free, 3\.0 GiB, found 3\.01"):
        TierSettings.read(host_gb=3.01).require_here()


def test_a_directory_of_somebody_else_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "lost+found").mkdir()
    tiers = TierSettings.read(host_gb=1, disk_path=tmp_path, disk_gb=0.001)
    tiers.require_here()
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(ForeignError, match="name another directory"):
        tiers.require_here()
    assert sorted(os.listdir(tmp_path)) == ["letters.txt", "lost+found"]


@pytest.mark.parametrize("name", ["\0", "x" * 5000])
def test_a_path_that_no_system_call_takes_is_refused(tmp_path, name):
    with pytest.raises(HybridPagesError, match=r"^disk_path: expected a "):
        TierSettings.read(host_gb=1, disk_path=f"{tmp_path}/{name}", disk_gb=0.1).require_here()


HOLDER = """
import fcntl, os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(file, fcntl.LOCK_EX)
os.write(file, str(os.getpid()).encode())
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_in_use_is_refused_with_the_process_that_uses_it(tmp_path):
    tiers = TierSettings.read(host_gb=1, disk_path=tmp_path, disk_gb=0.001)
    (tmp_path / "lane-0").mkdir()
    (tmp_path / "hybrid-pages-disk").write_text("hybrid-pages disk store, format 1\n")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "lane-0" / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        holder.stdout.readline()
        with pytest.raises(
            DiskError, match=rf"only user, found that process {holder.pid} uses it: "
        ):
            tiers.require_here()
        holder.stdin.close()
    tiers.require_here()
