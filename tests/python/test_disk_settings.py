"""A disk's settings, checked before anything is loaded."""

import errno
import os

import pytest

from hybrid_pages import BudgetError
from hybrid_pages.adapter import disk
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.vllm.config.settings import Settings


def test_settings_of_a_disk_are_taken():
    settings = Settings.parse({"disk_path": "/a", "disk_gb": 3, "disk_deadline_ms": 10})
    assert (settings.disk_path, settings.disk_gb, settings.disk_deadline_ms) == ("/a", 3.0, 10)
    assert not Settings.parse({}).disk_path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"disk_path": "/a"}, "disk_gb: expected a quota above 0 .* found 0: say how much"),
        ({"disk_path": "/a", "disk_gb": -1}, "disk_gb: expected a quota above 0"),
        ({"disk_path": "/a", "disk_gb": float("nan")}, "disk_gb: expected a quota above 0"),
        ({"disk_gb": 2}, "disk_path: expected a directory with disk_gb 2, found none"),
        ({"disk_deadline_ms": 0}, "disk_deadline_ms: expected 1 to 3600000 milliseconds, found 0"),
        ({"disk_deadline_ms": 1.5}, "disk_deadline_ms: expected int, found 1.5"),
        ({"disk_path": 3}, "disk_path: expected str, found 3"),
        ({"disk_pth": "/a"}, "did you mean 'disk_path'"),
    ],
)
def test_wrong_settings_say_what_to_do(given, message):
    with pytest.raises(SettingsError, match=message):
        Settings.parse(given)


def test_with_a_disk_stores_have_checksums_whatever_the_setting_says():
    assert not Settings(checksum="off").has_checksums
    assert Settings(checksum="off", disk_path="/a", disk_gb=1).has_checksums


def test_a_directory_that_can_be_made_is_accepted_and_not_made(tmp_path):
    disk.require_directory(str(tmp_path / "a"), 0.001)
    assert not (tmp_path / "a").exists()
    disk.require_directory(str(tmp_path), 0.001)


def test_its_parent_has_to_be_there(tmp_path):
    with pytest.raises(SettingsError, match=r"nor .*/a': make it first"):
        disk.require_directory(str(tmp_path / "a" / "b"), 0.001)


@pytest.mark.parametrize("below", ["", "/more"])
def test_a_file_is_no_directory(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"expected a directory, found the file .*file'"):
        disk.require_directory(f"{tmp_path}/file{below}", 0.001)


def test_a_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SettingsError, match="found the symbolic link"):
        disk.require_directory(str(tmp_path / "link"), 0.001)


def test_permission_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # tests may run as root
    with pytest.raises(SettingsError, match=r"expected to read and write in .* no permission"):
        disk.require_directory(str(tmp_path), 0.001)


def test_a_read_only_file_system_is_refused(tmp_path, monkeypatch):
    found = os.statvfs(tmp_path)
    fields = list(found)
    fields[8] |= os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # as there
    with pytest.raises(SettingsError, match="mounted read-only"):
        disk.require_directory(str(tmp_path), 0.001)


def test_a_quota_beyond_the_file_system_is_refused(tmp_path):
    with pytest.raises(BudgetError, match="disk_gb: expected at most the size of the file system"):
        disk.require_directory(str(tmp_path), 1 << 29)


def test_engine_cores_share_the_quota():
    shares = [disk.DiskShare.of("/a", 3.0, 7, lane=lane, lanes=3) for lane in range(3)]
    assert [share.nbytes for share in shares] == [1 << 30] * 3
    assert [share.lane for share in shares] == [0, 1, 2]
    assert disk.DiskShare.of("", 0.0, 7) is None


@pytest.mark.parametrize("errno", [errno.EIO, errno.ENOMEM, errno.EMFILE])
@pytest.mark.parametrize("call", ["lstat", "stat", "statvfs"])
def test_what_the_system_does_not_answer_is_no_reason_to_reject(tmp_path, monkeypatch, errno, call):
    def refuse(*args, **kwargs):
        raise OSError(errno, os.strerror(errno))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        disk.require_directory(str(tmp_path), 0.001)
    disk.require_directory(str(tmp_path), 0.001)
