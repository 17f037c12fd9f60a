"""The tier over a store that machines share: checks of its settings, and its use by one cache."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit
from urllib.request import url2pathname

from hybrid_pages import mooncake
from hybrid_pages._core import Geometry, Mooncake, Remote
from hybrid_pages.adapter.encryption import read_keys
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.places import require_permission

Admit = Literal["auto", "all"]
"""``auto``: only what saves time is read and written; ``all``: everything is."""

SCHEMES = ("s3", "gs", "az", "file", "mooncake")
DEADLINE_MS = 5000
"""The default of ``remote_deadline_ms``."""
LONGEST_DEADLINE_MS = 3_600_000
_EXPECTED = (
    "remote_url: expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, "
    "file:///DIRECTORY or mooncake://MASTER:PORT"
)


@dataclass(frozen=True)
class RemoteShare:
    """One cache's use of a store that machines share.

    url, deadline_ms, admit, encrypt_key: the user's settings. writes: whether this cache writes to
    the store.
    """

    url: str
    deadline_ms: int = DEADLINE_MS
    admit: Admit = "auto"
    writes: bool = True
    encrypt_key: str = ""

    @classmethod
    def of(
        cls,
        url: str,
        deadline_ms: int,
        admit: Admit,
        encrypt_key: str = "",
        *,
        writes: bool = True,
    ) -> RemoteShare | None:
        """The use of a store; None if ``url`` is empty."""
        return cls(url, deadline_ms, admit, writes, encrypt_key) if url else None

    def open(self, geometry: Geometry, *, slot_bytes: int, policy: str) -> Remote | Mooncake:
        """The tier of a cache over the store. It finds nothing before it is connected to an arena.

        Raises:
            RemoteError: the client cannot be made, or the directory.
            SettingsError: not a URL, its directory cannot be used, or there is no key where there
                should be one.
        """
        require_place(self.url, writes=self.writes)
        if urlsplit(self.url).scheme == "mooncake":
            return Mooncake(
                geometry,
                slot_bytes=slot_bytes,
                master=urlsplit(self.url).netloc,
                command=mooncake.command(),
                deadline_ms=self.deadline_ms,
                weighs=self.admit == "auto",
                policy=policy,
            )
        return Remote(
            geometry,
            slot_bytes=slot_bytes,
            url=self.url,
            deadline_ms=self.deadline_ms,
            admit=self.admit,
            policy=policy,
            encrypt_key=read_keys(self.encrypt_key),
        )


def require_remote(remote_url: str, remote_deadline_ms: int, remote_admit: str) -> None:
    """Rejects impossible settings of a store, without asking the store.

    Errors do not repeat what a URL should not hold, such as a password.

    Raises:
        SettingsError: names the setting.
    """
    if remote_admit not in get_args(Admit):
        raise SettingsError(
            f"remote_admit: expected one of {', '.join(map(repr, get_args(Admit)))}, found "
            f"{remote_admit!r}"
        )
    if not 1 <= remote_deadline_ms <= LONGEST_DEADLINE_MS:
        raise SettingsError(
            f"remote_deadline_ms: expected 1 to {LONGEST_DEADLINE_MS} milliseconds, found "
            f"{remote_deadline_ms}"
        )
    if not remote_url:
        return
    try:
        parts = urlsplit(remote_url)
    except ValueError:
        raise SettingsError(f"{_EXPECTED}, found no URL") from None
    if "@" in parts.netloc:
        raise SettingsError(
            f"{_EXPECTED}, found one with a name or a password in it: put credentials into the "
            "environment"
        )
    if "?" in remote_url or "#" in remote_url:
        raise SettingsError(
            f"{_EXPECTED}, found one with '?' or '#' in it: put settings into the environment"
        )
    if parts.scheme not in SCHEMES or "://" not in remote_url:
        raise SettingsError(f"{_EXPECTED}, found another kind of URL")
    if parts.scheme == "mooncake":
        try:
            whole = bool(parts.hostname and parts.port) and parts.path in ("", "/")
        except ValueError:
            whole = False
        if not whole:
            raise SettingsError(f"{_EXPECTED}, found no master's host and port, or more than that")
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise SettingsError(f"{_EXPECTED}, found no whole path: write file:/// and the path")
    if parts.scheme != "file" and not parts.netloc:
        raise SettingsError(f"{_EXPECTED}, found no bucket")


def require_place(remote_url: str, *, writes: bool = True) -> str:
    """Rejects a store whose client cannot be made, and a directory without the permissions needed.

    writes: whether permission to write is needed, besides that to read.

    Returns:
        The name of the place for logs.

    Raises:
        RemoteError: what is missing in the environment, or the directory cannot be made.
        SettingsError: the directory cannot be read or written.
    """
    parts = urlsplit(remote_url)
    if parts.scheme == "mooncake":
        if importlib.util.find_spec("mooncake") is None:
            raise SettingsError(
                "remote_url: expected Mooncake's client for mooncake://, found none: install the "
                f"package {mooncake.WHEEL}"
            )
        return remote_url
    place = Remote.check(remote_url)
    require_directory(place, writes=writes)
    return place


def require_directory(remote_url: str, *, writes: bool = True) -> None:
    """Rejects a directory that is not there and can't be made, or lacks the permissions needed.

    Creates nothing. Other stores are not looked at.

    writes: whether permission to write is needed, besides that to read.

    Raises:
        SettingsError: names the path, what is wrong and what to do.
    """
    parts = urlsplit(remote_url)
    if parts.scheme != "file":
        return
    path = Path(os.path.normpath(url2pathname(parts.path)))
    if path == path.parent:
        raise SettingsError(
            f"remote_url: expected a directory, found the root of the file system, {remote_url!r}: "
            "name one below it"
        )
    place = path if os.path.lexists(path) else path.parent
    if not place.is_dir():
        raise SettingsError(
            "remote_url: expected a directory, or one in which it can be made, found "
            f"{'a file at' if place == path else 'none at'} {str(place)!r}: make it first, or name "
            "another path"
        )
    try:
        require_permission("remote_url", place, writes=writes or place != path)
    except OSError as error:
        raise SettingsError(
            "remote_url: expected a directory that this process can look at, found "
            f"{str(path)!r}: {error}: name another path"
        ) from None
