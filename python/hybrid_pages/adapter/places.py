"""Whether this process may use a directory that a setting names."""

from __future__ import annotations

import os
from pathlib import Path

from hybrid_pages.adapter.errors import SettingsError


def require_permission(setting: str, place: Path, *, writes: bool = True) -> os.statvfs_result:
    """Rejects a directory that this process may not read, or write.

    Args:
        setting: whose value the directory is.
        place: a directory that is there.
        writes: whether permission to write is needed, besides that to read.

    Returns:
        What the system says of its file system.

    Raises:
        SettingsError: names the setting, what is missing and what to do.
        OSError: the system does not answer.
    """
    status = os.statvfs(place)
    # First, since access() denies writing there, too.
    if writes and status.f_flag & os.ST_RDONLY:
        raise SettingsError(
            f"{setting}: expected a file system to write on, found {str(place)!r} on one that is "
            "mounted read-only: mount it for writing, or name another path"
        )
    if not os.access(place, os.R_OK | os.X_OK | (os.W_OK if writes else 0)):
        raise SettingsError(
            f"{setting}: expected to read {'and write ' if writes else ''}in {str(place)!r}, found "
            "no permission to: make this process's user its owner, or name another path"
        )
    return status
