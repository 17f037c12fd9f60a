"""Names of LoRAs that outlive the engine: digests of their files.

Inside one engine the name, path and number of a LoRA tell which one a request means; vLLM's prefix
hashes have the name and the path. A later engine may find other weights under all three.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_pages.adapter.errors import UnsupportedError
from hybrid_pages.adapter.files import digest_of, model_files
from hybrid_pages.adapter.identity import short_lived
from hybrid_pages.vllm import versions
from hybrid_pages.vllm.versions import logger

if TYPE_CHECKING:
    from vllm.lora.request import LoRARequest

Marks = tuple[tuple[str, int, int, int, int], ...] | None
"""Names, sizes and times of a LoRA's files, which change when the files are written again; None if
they cannot be read here."""

_MOST = 4096
"""How many LoRAs are remembered. A forgotten one is read again."""


@dataclass(frozen=True)
class _Known:
    folder: Path | None
    marks: Marks
    name: bytes


class LastingNames:
    """Names each LoRA by its files, which are read once.

    A LoRA whose files cannot be read, are newer than this engine, or were changed since, gets a
    name that no other process has: it is not known which of the contents the engine has loaded.
    """

    def __init__(self) -> None:
        self._started = time.time_ns()
        self._known: dict[tuple[object, ...], _Known] = {}
        self._process = short_lived().encode()

    def name(self, lora: LoRARequest) -> bytes:
        """The name of a LoRA that is not loaded again in place."""
        key = (lora.lora_name, lora.lora_int_id, lora.lora_path)
        known = self._known.pop(key, None)
        if known is None:
            folder = _folder(lora)
            marks = file_marks(folder)
            known = _Known(folder, marks, self._read(lora, folder, marks))
        elif (marks := file_marks(known.folder)) != known.marks:
            own = repr((key, marks)).encode()
            known = _Known(known.folder, marks, self._unnamed(lora, own, "they have changed"))
        self._known[key] = known
        if len(self._known) > _MOST:
            del self._known[next(iter(self._known))]
        return known.name

    def unnamed(self, name: bytes) -> bytes:
        """Makes a name of this process one that no other process has."""
        return b"adapter of process " + self._process + b" " + name

    def _read(self, lora: LoRARequest, folder: Path | None, marks: Marks) -> bytes:
        own = repr((lora.lora_name, lora.lora_int_id, lora.lora_path)).encode()
        if folder is None:
            return self._unnamed(lora, own, "they are not on this machine")
        if any(max(written, changed) > self._started for *_, written, changed in marks or ()):
            return self._unnamed(lora, own, "they are newer than the engine")
        try:
            digest = digest_of(model_files(folder))
        except UnsupportedError as error:
            return self._unnamed(lora, own, str(error))
        return f"adapter {versions.lora_layout(lora)} {digest}".encode()

    def _unnamed(self, lora: LoRARequest, own: bytes, reason: str) -> bytes:
        logger.warning(
            "hybrid-pages: no other engine, and no later one, finds anything of adapter %r, since "
            "its files do not name it: %s",
            lora.lora_name,
            reason,
        )
        return self.unnamed(own)


def file_marks(folder: Path | None) -> Marks:
    """The marks of a LoRA's files."""
    if folder is None:
        return None
    try:
        with os.scandir(folder) as entries:
            return tuple(
                sorted(
                    (
                        entry.name,
                        status.st_ino,
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ctime_ns,
                    )
                    for entry in entries
                    for status in (entry.stat(),)
                )
            )
    except OSError:
        return None


def _folder(lora: LoRARequest) -> Path | None:
    """The folder of a LoRA's files, as vLLM finds it (``vllm/lora/utils.py``)."""
    path = Path(lora.lora_path).expanduser()
    if path.is_absolute() or path.exists():
        return path
    place = versions.downloaded(lora.lora_path, None, None)
    return None if place is None else Path(place)
