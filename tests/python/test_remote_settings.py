"""Settings of a store that machines share, checked before anything is loaded."""

import errno
import os

import pytest

from hybrid_pages import InvalidArgumentError, Remote, RemoteError
from hybrid_pages.adapter import remote
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.vllm.config.settings import Settings

SECRET = "AKIA-s3cr3t"


def test_settings_of_a_store_are_taken():
    given = {"remote_url": "s3://bucket/a/b", "remote_deadline_ms": 10, "remote_admit": "all"}
    settings = Settings.parse(given)
    assert {name: getattr(settings, name) for name in given} == given
    assert settings.lasting == "remote_url"
    settings = Settings.parse({})
    assert (settings.remote_url, settings.lasting) == ("", "")
    assert settings.remote_admit == "auto"
    assert Settings(remote_url="gs://b", disk_path="/a", disk_gb=1).lasting == "disk_path"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"remote_url": "ftp://host/a"},
            "expected s3://.*, file:///DIRECTORY or mooncake://.*, found another kind",
        ),
        ({"remote_url": "/a/b"}, "found another kind"),
        ({"remote_url": "s3:bucket"}, "found another kind"),
        ({"remote_url": "s3:///a"}, "found no bucket"),
        ({"remote_url": "file://host/a"}, "found no whole path: write file:///"),
        ({"remote_url": "file:///"}, "found no whole path"),
        ({"remote_url": "s3://[a"}, "found no URL"),
        ({"remote_url": f"s3://me:{SECRET}@bucket/a"}, "a name or a password in it: put cred"),
        ({"remote_url": f"s3://{SECRET}@bucket/a"}, "a name or a password in it"),
        ({"remote_url": f"az://box/a?sig={SECRET}"}, r"with '\?' or '#' in it: put settings"),
        ({"remote_url": f"s3://bucket/a#{SECRET}"}, r"with '\?' or '#' in it"),
        ({"remote_url": f"{SECRET}:more"}, "found another kind"),
        ({"remote_url": 3}, "remote_url: expected str, found 3"),
        ({"remote_deadline_ms": 0}, "remote_deadline_ms: expected 1 to 3600000 millisec.*found 0"),
        ({"remote_admit": "al"}, "remote_admit: expected one of 'auto', 'all', found 'al'"),
        ({"remote_ur": "s3://a"}, "did you mean 'remote_url'"),
    ],
)
def test_wrong_settings_say_what_to_do_and_tell_no_secret(given, message):
    with pytest.raises(SettingsError, match=message) as raised:
        Settings.parse(given)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    "url", [f"s3://me:{SECRET}@bucket", f"s3://bucket?key={SECRET}", f"{SECRET}://bucket"]
)
def test_the_client_tells_no_secret_either(url):
    with pytest.raises(InvalidArgumentError) as raised:
        Remote.check(url)
    assert SECRET.lower() not in str(raised.value).lower()


def test_with_a_store_stores_have_checksums_whatever_the_setting_says():
    assert Settings(checksum="off", remote_url="s3://bucket").has_checksums


def test_a_directory_is_made_if_its_parent_is_there(tmp_path):
    url = (tmp_path / "a").as_uri()
    assert remote.require_place(url) == url
    assert (tmp_path / "a").is_dir()
    with pytest.raises(RemoteError, match="expected a directory"):
        remote.require_place((tmp_path / "b" / "c").as_uri())


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RemoteError, match="file: expected a directory"):
        remote.require_place((tmp_path / "file").as_uri())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_others_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(SettingsError, match="remote_url: expected to read and write in"):
        remote.require_place(tmp_path.as_uri())


def test_a_read_only_file_system_is_refused_to_those_who_write(tmp_path, monkeypatch):
    fields = list(os.statvfs(tmp_path))
    fields[8] |= os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(fields))
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)  # as there
    with pytest.raises(SettingsError, match=r"remote_url: .* mounted read-only: mount it for"):
        remote.require_place(tmp_path.as_uri())
    assert remote.require_place(tmp_path.as_uri(), writes=False) == tmp_path.as_uri()


def test_a_directory_that_the_system_does_not_answer_for_is_refused(tmp_path, monkeypatch):
    def refuse(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "statvfs", refuse)
    with pytest.raises(SettingsError, match="remote_url: expected a directory that this process"):
        remote.require_place(tmp_path.as_uri())


@pytest.mark.parametrize("path", ["/b/../a", "//a", "/a/"])
def test_a_directory_may_be_written_in_several_ways(tmp_path, path):
    remote.require_place(f"file://{tmp_path}{path}")
    remote.require_place(f"FILE://{tmp_path}{path}")
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_names_with_spaces_are_whole_paths(tmp_path):
    folder = tmp_path / "a b"
    remote.require_place(folder.as_uri())
    assert folder.is_dir()


def test_a_client_is_made_from_the_environment_alone(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    assert remote.require_place("s3://bucket/prefix") == "s3://bucket/prefix"
