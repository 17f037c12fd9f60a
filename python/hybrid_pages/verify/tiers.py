"""The settings of the engines that verify starts: the user's, but with places of their own."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from hybrid_pages.adapter.errors import SettingsError

HOST, DISK, REMOTE = "host", "disk", "remote"
_CONNECTOR = "HybridPagesConnector"


@dataclass(frozen=True)
class EngineStart:
    """How an engine is started.

    run: names this run; nothing that others have stored is found under it, nor the other way round.
    alone: the one tier below the host that it has; empty for all that the user set. scratch:
    a directory for the disk tier's files; empty for the one that ``disk_path`` is in. plant: a
    fault, see ``hybrid_pages.vllm.worker.faults``.
    """

    run: str
    alone: str = ""
    scratch: str = ""
    plant: str = ""


@dataclass(frozen=True)
class Arranged:
    """A transfer configuration for verify.

    tiers: what is set, from the host down. disk, remote: where what is stored goes; empty for
    nowhere. notes: what differs from the user's settings.
    """

    transfer: dict[str, Any]
    tiers: tuple[str, ...]
    disk: str
    remote: str
    notes: tuple[str, ...]


def arrange(transfer: Mapping[str, Any] | None, start: EngineStart) -> Arranged:
    """Turns the user's ``--kv-transfer-config`` into that of one of verify's engines.

    Raises:
        SettingsError: there is another connector alone, or a role that only stores or only loads.
    """
    notes: list[str] = []
    if transfer is None:
        transfer = {
            "kv_connector": _CONNECTOR,
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"host_gb": "auto"},
        }
        notes.append('no --kv-transfer-config was given: HybridPagesConnector, host_gb "auto"')
    outer = {**transfer}
    extra = {**(outer.get("kv_connector_extra_config") or {})}
    if outer.get("kv_connector") == "MultiConnector":
        given = extra.get("connectors") or []
        if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
            raise SettingsError(
                f"connectors: expected a list of configurations, found {reprlib.repr(given)}"
            )
        children = [{**child} for child in given]
        ours = next((each for each in children if each.get("kv_connector") == _CONNECTOR), None)
        outer["kv_connector_extra_config"] = {**extra, "connectors": children}
        notes.append("other connectors run beside; what they load counts as `other`")
    else:
        ours = outer if outer.get("kv_connector") == _CONNECTOR else None
    if ours is None:
        raise SettingsError(
            f"--kv-transfer-config: expected {_CONNECTOR}, found {outer.get('kv_connector')!r}: "
            "name it, or leave the flag out"
        )
    role = ours.get("kv_role") or "kv_both"
    if role != "kv_both":
        raise SettingsError(
            f"kv_role: expected 'kv_both', found {role!r}: such an engine does not restore what it "
            "has stored; run verify with kv_both"
        )
    settings = {**(ours.get("kv_connector_extra_config") or {})}
    tiers, disk, remote = _places(settings, start, notes)
    for name, usual, why in (
        ("follow_engine_resets", False, "a reset of vLLM's own cache is part of the comparison"),
        ("trace_dir", "", "these prompts are nobody's traffic"),
    ):
        if settings.get(name, usual) != usual:
            settings[name] = usual
            notes.append(f"{name} is off: {why}")
    if start.plant:
        settings["plant"] = start.plant
    ours["kv_connector_extra_config"] = settings
    return Arranged(outer, tiers, disk, remote, tuple(notes))


def _places(
    settings: dict[str, Any], start: EngineStart, notes: list[str]
) -> tuple[tuple[str, ...], str, str]:
    disk, remote = str(settings.get("disk_path") or ""), str(settings.get("remote_url") or "")
    if disk and start.alone != REMOTE:
        folder = Path(start.scratch) if start.scratch else Path(disk).absolute().parent
        settings["disk_path"] = disk = str(folder / f"{Path(disk).name}.verify-{start.run}")
        notes.append(f"disk_path: {disk} instead of yours, and removed at the end")
    else:
        for name in ("disk_path", "disk_gb"):
            settings.pop(name, None)
        disk = ""
    if remote and start.alone != DISK:
        if urlsplit(remote).scheme != "mooncake":
            settings["remote_url"] = remote = f"{remote.rstrip('/')}/verify-{start.run}"
            end = "removed" if folder_of(remote) else "left there: remove it"
            notes.append(f"remote_url: {remote} instead of yours, and {end} at the end")
        else:
            notes.append(f"remote_url: {remote} keeps what verify stores until it evicts it")
        if settings.get("remote_admit", "auto") != "all":
            settings["remote_admit"] = "all"
            notes.append('remote_admit is "all": everything is written and read')
    else:
        settings.pop("remote_url", None)
        remote = ""
    if not (disk or remote):
        settings.pop("encrypt_key", None)
    tiers = (HOST, *((DISK,) if disk else ()), *((REMOTE,) if remote else ()))
    return tiers, disk, remote


def folder_of(remote: str) -> Path | None:
    """The directory of a ``file:`` URL; None for other stores."""
    parts = urlsplit(remote)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else None
