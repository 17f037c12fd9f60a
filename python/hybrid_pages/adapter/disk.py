"""The disk tier: checks of its settings and its directory, and one cache's share of it."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from hybrid_pages._core import BudgetError, Disk, DiskError, DiskTree, Geometry
from hybrid_pages.adapter.encryption import read_keys
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.memory import GIB
from hybrid_pages.adapter.places import require_permission

DEADLINE_MS = 5000
"""The default of ``disk_deadline_ms``."""
LONGEST_DEADLINE_MS = 3_600_000
_MARKER = "hybrid-pages-disk"
_UNUSABLE = (errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG)
"""Error numbers of paths that no later try makes usable."""


@dataclass(frozen=True)
class DiskShare:
    """One cache's share of the directory of a disk tier.

    path, deadline_ms, encrypt_key: the user's settings. nbytes: the share of the quota. lane:
    number of the share, which is also a folder in the directory.
    """

    path: str
    nbytes: int
    deadline_ms: int = DEADLINE_MS
    lane: int = 0
    encrypt_key: str = ""

    @classmethod
    def of(
        cls,
        path: str,
        gb: float,
        deadline_ms: int,
        encrypt_key: str = "",
        *,
        lane: int = 0,
        lanes: int = 1,
    ) -> DiskShare | None:
        """One of ``lanes`` equal shares of a quota of ``gb`` GiB; None if ``path`` is empty."""
        nbytes = int(gb * GIB) // lanes
        return cls(path, nbytes, deadline_ms, lane, encrypt_key) if path else None

    def open(self, geometry: Geometry, *, slot_bytes: int, policy: str) -> Disk:
        """The disk tier of a cache. It finds nothing before it is connected to an arena.

        Raises:
            BudgetError: its part of the quota cannot hold one entry of each class.
            DiskError: the directory cannot be used, or another process uses it.
            ForeignError: something else is in it.
            SettingsError: no directory at the path can be written to, or there is no key where
                there should be one.
        """
        require_directory(self.path, self.nbytes / GIB)
        return Disk(
            geometry,
            slot_bytes=slot_bytes,
            path=self.path,
            quota_bytes=self.nbytes,
            lane=self.lane,
            deadline_ms=self.deadline_ms,
            policy=policy,
            encrypt_key=read_keys(self.encrypt_key),
        )


def require_quota(disk_path: str, disk_gb: float, disk_deadline_ms: int) -> None:
    """Rejects settings of a disk that are impossible or contradict each other.

    Raises:
        SettingsError: names the setting.
    """
    if disk_path and not 0 < disk_gb < 1 << 30:
        raise SettingsError(
            f"disk_gb: expected a quota above 0 and below 1073741824 GiB with disk_path, found "
            f"{disk_gb:g}: say how much of the file system the cache may take"
        )
    if disk_gb and not disk_path:
        raise SettingsError(
            f"disk_path: expected a directory with disk_gb {disk_gb:g}, found none: name one, or "
            "leave disk_gb out"
        )
    if not 1 <= disk_deadline_ms <= LONGEST_DEADLINE_MS:
        raise SettingsError(
            f"disk_deadline_ms: expected 1 to {LONGEST_DEADLINE_MS} milliseconds, found "
            f"{disk_deadline_ms}"
        )


def require_directory(disk_path: str, disk_gb: float) -> None:
    """Rejects a directory that cannot be used, and a quota that its file system cannot hold.

    Creates nothing. If the system does not answer, nothing is rejected: the tier tries again.

    Raises:
        SettingsError: names the path, what is wrong and what to do.
        BudgetError: the quota is larger than the file system.
        ForeignError: something else is in the directory.
    """
    try:
        _require_place(disk_path, disk_gb)
    except OSError:
        return


def _require_place(disk_path: str, disk_gb: float) -> None:
    path = Path(disk_path)
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in _UNUSABLE:
            raise
        raise SettingsError(
            f"disk_path: expected a directory that this process can look at, found {disk_path!r}: "
            f"{error}: name another path"
        ) from None
    if path.is_symlink():
        raise SettingsError(
            f"disk_path: expected a directory, found the symbolic link {disk_path!r}: name the "
            "directory that it leads to"
        )
    place = path if _is_there(path) else path.parent
    if not _is_there(place):
        raise SettingsError(
            f"disk_path: expected a directory, or one in which it can be made, found neither "
            f"{disk_path!r} nor {str(place)!r}: make it first"
        )
    if not place.is_dir():
        raise SettingsError(
            f"disk_path: expected a directory, found the file {str(place)!r}: name another path"
        )
    status = require_permission("disk_path", place)
    nbytes = status.f_blocks * status.f_frsize
    if disk_gb * GIB > nbytes:
        raise BudgetError(
            f"disk_gb: expected at most the size of the file system of {str(place)!r}, "
            f"{nbytes / GIB:.1f} GiB, found {disk_gb:g} GiB: lower it"
        )
    if place == path and any(map(_is_somebodys, os.listdir(path))):
        _require_ours(disk_path)


def _require_ours(disk_path: str) -> None:
    try:
        DiskTree(disk_path)  # only looks at whose it is
    except DiskError:
        return


def _is_somebodys(name: str) -> bool:
    """Whether a file shows that a directory is used for something else.

    A new file system has lost+found, and another process may be writing the marker now.
    """
    return name != "lost+found" and not name.startswith(f"{_MARKER}.")


def require_unused(disk_path: str, lane: int = 0) -> None:
    """Rejects a directory whose lane another process uses. Creates nothing and keeps no lock.

    Raises:
        DiskError: names the process, and what to do.
    """
    here = Path(disk_path) / f"lane-{lane}"
    try:
        lock = os.open(here / "lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # not used yet; any other fault shows when the lane is taken
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_UN)
    except BlockingIOError:
        holder = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
        raise DiskError(
            f"disk_path {str(here)!r}: expected to be its only user, found that process {holder} "
            "uses it: give each server a directory of its own, or stop the other one"
        ) from None
    except OSError:
        return
    finally:
        os.close(lock)


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return False
    return True
