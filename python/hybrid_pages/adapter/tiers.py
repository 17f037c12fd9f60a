"""The settings of a cache's tiers, for all integrations, checked before anything is loaded."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hybrid_pages._core import Disk, Mooncake, Remote
from hybrid_pages.adapter import disk, remote
from hybrid_pages.adapter.disk import DiskShare, require_directory, require_quota, require_unused
from hybrid_pages.adapter.encryption import key_setting, read_keys, require_encryption, shown
from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.adapter.memory import require_memory
from hybrid_pages.adapter.pool import budget_of
from hybrid_pages.adapter.remote import Admit, RemoteShare, require_place, require_remote

MOST_BLOCK_TOKENS = 1 << 20
_MOST_GIB = 1 << 20
_SETTLE_SECONDS = 5.0


@dataclass(frozen=True)
class TierSettings:
    """The settings of a cache's host memory and of the tiers below it, which make sense together.

    :meth:`require_here` checks whether this machine has what they ask for. What depends on a model,
    such as the size of an entry, is checked by :class:`Pool`.

    host_gb: memory of the host, in GiB. disk_path: directory of the disk tier; empty for none.
    disk_gb: quota of the files in it, in GiB. disk_deadline_ms: how long a call to them may take.
    remote_url: store that machines share; empty for none. remote_deadline_ms: how long a read from
    it may take. remote_admit: whether only what saves time is written there, or everything.
    encrypt_key: the key file, or ``env:`` and a variable, whose keys encrypt what is in both; empty
    for none.

    Raises:
        SettingsError: a setting that is impossible, or without another that it needs.
    """

    host_gb: float
    disk_path: str = ""
    disk_gb: float = 0.0
    disk_deadline_ms: int = disk.DEADLINE_MS
    remote_url: str = ""
    remote_deadline_ms: int = remote.DEADLINE_MS
    remote_admit: Admit = "auto"
    encrypt_key: str = ""

    def __post_init__(self) -> None:
        _require_types(vars(self))
        if not 0 < self.host_gb < _MOST_GIB:
            raise SettingsError(
                f"host_gb: expected a size above 0 and below {_MOST_GIB} GiB, found "
                f"{self.host_gb}: say how much host memory the cache may take"
            )
        require_quota(self.disk_path, self.disk_gb, self.disk_deadline_ms)
        require_remote(self.remote_url, self.remote_deadline_ms, self.remote_admit)
        require_encryption(self.encrypt_key, self.disk_path, self.remote_url)

    @classmethod
    def read(
        cls,
        *,
        host_gb: float | str,
        disk_path: str | os.PathLike[str] = "",
        disk_gb: float = 0.0,
        disk_deadline_ms: int = disk.DEADLINE_MS,
        remote_url: str = "",
        remote_deadline_ms: int = remote.DEADLINE_MS,
        remote_admit: Admit = "auto",
        encrypt_key: str | os.PathLike[str] | None = None,
    ) -> TierSettings:
        """Settings as a program gives them, of whatever types.

        Args:
            host_gb: GiB, or ``"auto"`` for a share of the memory that is free now.
            disk_path: a text, or a ``Path``.
            encrypt_key: a text, or a ``Path``; None for none.
            disk_gb, disk_deadline_ms, remote_url, remote_deadline_ms, remote_admit: as the fields.

        Raises:
            SettingsError: also a setting of the wrong type.
        """
        given: dict[str, Any] = {
            "host_gb": budget_of(host_gb),
            "disk_path": _path_of(disk_path),
            "disk_gb": disk_gb,
            "disk_deadline_ms": disk_deadline_ms,
            "remote_url": remote_url,
            "remote_deadline_ms": remote_deadline_ms,
            "remote_admit": remote_admit,
            "encrypt_key": key_setting(encrypt_key),
        }
        return cls(**given)

    def require_here(self) -> None:
        """Rejects settings that this machine cannot meet, for a cache of this process alone.

        Raises:
            BudgetError: more memory than is free, or a quota that the file system cannot hold.
            DiskError: another process uses the disk's directory.
            ForeignError: something else is in the disk's directory.
            RemoteError, SettingsError: a disk or a store that cannot be used.
        """
        require_memory(self.host_gb)
        self.require_below()

    def require_below(self) -> None:
        """Rejects places below the host that cannot be used here, or that another process uses.

        Raises:
            BudgetError, DiskError, ForeignError, RemoteError, SettingsError: as
                :meth:`require_here`.
        """
        self.require_places()
        if self.disk_path:
            require_unused(self.disk_path)

    def require_places(self, *, writes: bool = True) -> None:
        """Rejects places below the host that cannot be used here.

        writes: whether the cache writes to the store that machines share.

        Raises:
            BudgetError, ForeignError, RemoteError, SettingsError: as :meth:`require_here`.
        """
        if self.disk_path:
            require_directory(self.disk_path, self.disk_gb)
        if self.remote_url:
            require_place(self.remote_url, writes=writes)
        read_keys(self.encrypt_key)

    def disk(self, *, lane: int = 0, lanes: int = 1) -> DiskShare | None:
        """One of ``lanes`` equal shares of the disk; None if there is no disk."""
        return DiskShare.of(
            self.disk_path,
            self.disk_gb,
            self.disk_deadline_ms,
            self.encrypt_key,
            lane=lane,
            lanes=lanes,
        )

    def remote(self, *, writes: bool = True) -> RemoteShare | None:
        """The use of the store that machines share; None if there is none."""
        return RemoteShare.of(
            self.remote_url,
            self.remote_deadline_ms,
            self.remote_admit,
            self.encrypt_key,
            writes=writes,
        )

    @property
    def lasting(self) -> str:
        """The setting by which entries outlive the process; empty if none does."""
        return "disk_path" if self.disk_path else "remote_url" if self.remote_url else ""

    @property
    def wait_seconds(self) -> float:
        """How long a request waits for tiers below the host: the longest of their deadlines."""
        used = [self.disk_deadline_ms] if self.disk_path else []
        used += [self.remote_deadline_ms] if self.remote_url else []
        return max(used, default=self.disk_deadline_ms) / 1000


def close_tier(tier: Disk | Remote | Mooncake | None) -> list[str]:
    """Waits up to 5 seconds for writes to a tier to end, and ends its use.

    Returns:
        Messages for the operator that were not returned before, such as how much was not written.
    """
    if tier is None:
        return []
    tier.settle(_SETTLE_SECONDS)
    tier.close()
    return tier.notes()


def require_block_tokens(block_tokens: object) -> int:
    """Rejects a number of tokens that a block cannot have; returns the number.

    Raises:
        SettingsError: not a whole number, or out of range.
    """
    is_whole = isinstance(block_tokens, int) and not isinstance(block_tokens, bool)
    if isinstance(block_tokens, int) and is_whole and 1 <= block_tokens <= MOST_BLOCK_TOKENS:
        return block_tokens
    raise SettingsError(
        f"block_tokens: expected a whole number from 1 to {MOST_BLOCK_TOKENS}, found "
        f"{reprlib.repr(block_tokens)}: prompts are restored in blocks of so many tokens"
    )


_WORDS: dict[type, str] = {int: "a whole number", float: "a number", str: "a text"}
_TYPES: dict[str, type] = {
    "host_gb": float,
    "disk_path": str,
    "disk_gb": float,
    "disk_deadline_ms": int,
    "remote_url": str,
    "remote_deadline_ms": int,
    "remote_admit": str,
    "encrypt_key": str,
}


def _path_of(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _require_types(given: Mapping[str, Any]) -> None:
    for name, kind in _TYPES.items():
        value = given[name]
        accepted = (int, float) if kind is float else (kind,)
        if not isinstance(value, accepted) or isinstance(value, bool):
            raise SettingsError(
                f"{name}: expected {_WORDS[kind]}, found {shown(value, name)} of type "
                f"{type(value).__name__}"
            )
        if isinstance(value, str) and "\0" in value:
            raise SettingsError(
                f"{name}: expected a text without NUL characters, found {shown(value, name)}"
            )
        if isinstance(value, int) and value.bit_length() > 64:
            raise SettingsError(
                f"{name}: expected a number of usual size, found one of {value.bit_length()} bits"
            )
