"""The keys of tails: the tokens of a prefix behind its last whole block.

vLLM hashes whole blocks only. A key of a tail covers what vLLM's hash of its block would: what is
before, the tokens, the LoRA, the images and, in the first block, the salt. It has 19 bytes of
BLAKE2b, the first 8 bytes of the key before, and 4 of the number of tokens; by these 31 bytes the
core tells it from the key of a block.
"""

import hashlib
import itertools
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hybrid_pages import InvalidArgumentError

if TYPE_CHECKING:
    from vllm.v1.request import Request

_DIGEST_BYTES, _STEM_BYTES, _TOKENS_BYTES = 19, 8, 4
_PERSON = b"hybrid-pages"
_ABSENT = b"\xff" * 8
_IMAGE = struct.pack("<q", -(2**63))
"""Stands before the first token of an image; no token has this id."""


def can_have_tails(request: "Request") -> bool:
    """Whether every token of a request has an id. Prompts with embeddings have others."""
    return request.prompt_embeds is None


def tail_keys(
    request: "Request", parent: bytes | None, start: int, lengths: Sequence[int]
) -> list[bytes]:
    """The keys of tails that begin after ``start`` tokens, one for each length.

    Args:
        request: one that :func:`can_have_tails`.
        parent: the key of the block before; None at the start of the prompt.
        start: where that block ends, in tokens.
        lengths: tokens of the tails, ascending.

    Raises:
        InvalidArgumentError: the request lacks the tokens, or the arguments contradict each other.
    """
    if not lengths:
        return []
    tokens = request.all_token_ids[start : start + lengths[-1]]
    pairs = itertools.pairwise((0, *lengths))
    if any(length <= before for before, length in pairs) or len(tokens) < lengths[-1]:
        raise InvalidArgumentError(
            f"lengths of tails: expected ascending ones from 1 to {request.num_tokens - start}, "
            f"found {', '.join(map(str, lengths))}"
        )
    if (parent is None) != (start == 0):
        raise InvalidArgumentError(
            "parent of tails: expected the key of the block before, and none at the start of a "
            f"prompt, found {'none' if parent is None else 'one'} after {start} tokens"
        )
    images = _images(request, start, start + lengths[-1])
    hashed = hashlib.blake2b(_before(request, parent), digest_size=_DIGEST_BYTES, person=_PERSON)
    stem = bytes(_STEM_BYTES) if parent is None else parent[:_STEM_BYTES]
    keys, done = [], 0
    for length in lengths:
        for end in sorted({length, *(place for place in images if done < place < length)}):
            hashed.update(images.get(done, b""))
            hashed.update(struct.pack(f"<{end - done}q", *tokens[done:end]))
            done = end
        keys.append(hashed.copy().digest() + stem + length.to_bytes(_TOKENS_BYTES, "little"))
    return keys


def _before(request: "Request", parent: bytes | None) -> bytes:
    """What a tail depends on before its first token."""
    lora = request.lora_request
    names = (None, None) if lora is None else (lora.lora_name, lora.lora_path)
    salt = (request.cache_salt or None) if parent is None else None
    return _framed((parent, *map(_encoded, names), _encoded(salt)))


def _images(request: "Request", start: int, end: int) -> dict[int, bytes]:
    """What names the images (or other media) in the tokens [start, end), by the place of each one's
    first token there."""
    named: dict[int, bytes] = {}
    for item in request.mm_features:
        first, length = item.mm_position.offset, item.mm_position.length
        if first < end and start < first + length:
            place = max(first - start, 0)
            where = struct.pack("<2q", max(start - first, 0), length)
            said = _IMAGE + where + _framed([_encoded(item.identifier)])
            named[place] = named.get(place, b"") + said
    return named


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _framed(fields: Iterable[bytes | None]) -> bytes:
    """Fields behind their lengths, so that no two lists give the same bytes."""
    return b"".join(
        _ABSENT if field is None else len(field).to_bytes(8, "little") + field for field in fields
    )
