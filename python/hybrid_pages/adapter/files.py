"""Digests of the contents of files. Of large files only samples are read, so that it is quick.

Safetensors format: https://github.com/huggingface/safetensors, "Format". Such a file begins with
the length of a JSON header (8 bytes, little-endian), which says where each tensor lies.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hybrid_pages.adapter.errors import UnsupportedError

WHOLE_BYTES = 64 << 20
"""If all files together are no larger than this, they are read whole."""
PIECE_BYTES = 4096
MOST_PIECES = 32768
"""How many pieces of all large files together are read, besides their headers and ends."""

_END_BYTES = 65536
_SMALL_BYTES = 1 << 20
_MOST_HEADER_BYTES = 100_000_000
_BATCH = 256
_THREADS = 16

_WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npz"})
_TEXTS = frozenset({".json", ".py", ".yaml"})
# These do not change what is computed from token ids.
_NO_PART = (
    "added_tokens.json",
    "chat_template",
    "generation_config.json",
    "merges",
    "special_tokens_map.json",
    "tokenizer",
    "trainer_state.json",
    "training_args",
    "vocab",
)
_DEPTH = 3


@dataclass(frozen=True)
class _Extent:
    """A range of bytes of a file."""

    path: Path
    offset: int
    length: int


def model_files(folder: Path) -> dict[str, Path]:
    """The files of a folder that say what a model or a LoRA adapter computes, by relative name.

    Raises:
        UnsupportedError: there are no weights among them, or the folder cannot be read.
    """
    found: dict[str, Path] = {}
    try:
        for path in _walk(folder, _DEPTH):
            if path.suffix in _WEIGHTS | _TEXTS and not path.name.startswith(_NO_PART):
                found[path.relative_to(folder).as_posix()] = path
    except OSError as error:
        raise UnsupportedError(f"expected a folder with weights, found {error}") from error
    if not any(path.suffix in _WEIGHTS for path in found.values()):
        raise UnsupportedError(
            f"expected weights ({', '.join(sorted(_WEIGHTS))}) in {folder}, found none"
        )
    return found


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_file():
            yield Path(entry.path)
        elif entry.is_dir() and depth > 1 and not entry.name.startswith("."):
            yield from _walk(Path(entry.path), depth - 1)


def digest_of(files: Mapping[str, Path]) -> str:
    """A digest of the names, sizes and contents of files, as 64 hexadecimal digits.

    Files of at most :data:`WHOLE_BYTES` together are read whole. Otherwise large files are sampled:
    of a safetensors file the header and a piece of each tensor, of any other file both ends and
    evenly spread pieces. Times, folders and the targets of links do not matter.

    Raises:
        UnsupportedError: a file that can't be read, or that changes meanwhile.
    """
    try:
        sizes = {name: path.stat().st_size for name, path in files.items()}
        whole = sum(sizes.values()) <= WHOLE_BYTES
        large = [] if whole else [name for name in sizes if sizes[name] > _SMALL_BYTES]
        tensors = {name: _tensors(files[name], sizes[name]) for name in large}
        pieces = _Pieces(sum(map(len, tensors.values())), len(large))
        extents: list[_Extent] = []
        for name in sorted(files):
            path, size = files[name], sizes[name]
            found = tensors.get(name)
            spans = [(0, size)] if found is None else pieces.of(size, found)
            extents += [_Extent(path, offset, length) for offset, length in spans]
        digest = hashlib.blake2b(digest_size=32)
        digest.update(json.dumps(sorted(sizes.items())).encode())
        for part in _in_parallel(_digest, _batches(extents)):
            digest.update(part)
    except OSError as error:
        raise UnsupportedError(f"expected files that can be read, found {error}") from error
    return digest.hexdigest()


class _Pieces:
    """Chooses the pieces of large files that are read.

    tensors: how many the safetensors files have together. files: how many large files there are.
    """

    def __init__(self, tensors: int, files: int) -> None:
        # Of very many tensors only some have a piece.
        self._stride = max(1, -(-tensors // MOST_PIECES))
        self._of_each = max(1, min(4, MOST_PIECES // max(tensors, 1)))
        self._of_a_file = max(64, MOST_PIECES // max(files, 1))

    def of(self, size: int, tensors: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The offsets and lengths to read of a file.

        size: of the file, in bytes. tensors: offset and length of each; none for other formats.
        """
        spans = [(0, min(size, _END_BYTES)), (max(0, size - _END_BYTES), min(size, _END_BYTES))]
        if not tensors:
            count = min(self._of_a_file, max(256, size >> 20))
            return spans + _spread(0, size, count)
        spans.append((0, min(offset for offset, _ in tensors)))
        for offset, length in tensors[:: self._stride]:
            spans += _spread(offset, length, self._of_each)
        return spans


def _spread(offset: int, length: int, count: int) -> list[tuple[int, int]]:
    """Pieces evenly spread over a part of a file; the whole part if it is short."""
    if length <= count * PIECE_BYTES:
        return [(offset, length)]
    last = length - PIECE_BYTES
    if count == 1:
        return [(offset + last // 2, PIECE_BYTES)]
    return [(offset + last * i // (count - 1), PIECE_BYTES) for i in range(count)]


def _tensors(path: Path, size: int) -> list[tuple[int, int]]:
    """Offset and length of each tensor of a safetensors file; none for any other file."""
    if path.suffix != ".safetensors":
        return []
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size - 8, _MOST_HEADER_BYTES):
            return []
        raw = file.read(length)
    try:
        header = json.loads(raw)
        spans = [item["data_offsets"] for name, item in header.items() if name != "__metadata__"]
        found = sorted((8 + length + int(start), int(end - start)) for start, end in spans)
    except (ValueError, TypeError, KeyError, AttributeError):
        return []
    fits = all(offset >= 0 and 0 <= count <= size - offset for offset, count in found)
    return found if fits else []


def _batches(extents: Sequence[_Extent]) -> list[list[_Extent]]:
    """Extents in order, in batches of one file each."""
    batches: list[list[_Extent]] = []
    for extent in extents:
        if not batches or batches[-1][0].path != extent.path or len(batches[-1]) == _BATCH:
            batches.append([])
        batches[-1].append(extent)
    return batches


def _digest(extents: Sequence[_Extent]) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    with extents[0].path.open("rb", buffering=0) as file:
        for extent in extents:
            left, offset = extent.length, extent.offset
            while left:
                data = os.pread(file.fileno(), min(left, _SMALL_BYTES), offset)
                if not data:
                    raise UnsupportedError(
                        f"{extent.path}: expected a file that stays while it is read, found it "
                        "shorter"
                    )
                digest.update(data)
                left, offset = left - len(data), offset + len(data)
    return digest.digest()


def _in_parallel(
    work: Callable[[Sequence[_Extent]], bytes], batches: Sequence[Sequence[_Extent]]
) -> Iterable[bytes]:
    """The results in order."""
    with ThreadPoolExecutor(min(_THREADS, max(1, len(batches)))) as threads:
        return list(threads.map(work, batches))
