"""Records a trace of an engine's requests, to replay in the lab: ``hybrid-pages lab replay``.

It holds lengths, times and hashes, never a token. The hashes are made with a secret that is never
written, so the file does not tell whether a known text was among the prompts. Format: JSON lines;
the first names the format and the block size, then one per request, written when it ends:
``{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [hex, ...]}``, and
the hints that the request had: ``session`` (a hash), ``priority``, ``retain``, ``store``,
``expect_in`` and ``release``.
"""

import hashlib
import json
import os
import secrets
import time
from pathlib import Path
from typing import TextIO

from hybrid_pages.vllm.config.settings import SettingsError
from hybrid_pages.vllm.metrics import Figures
from hybrid_pages.vllm.scheduler.requests.hints import NOTHING, session_name
from hybrid_pages.vllm.scheduler.requests.tracked import Tracked
from hybrid_pages.vllm.versions import logger

FORMAT, VERSION = "hybrid-pages-trace", 1
MOST_BYTES = 1 << 30
"""Where a recording ends: that is about a million requests of 50 blocks."""


class Recording:
    """The file of a recording. Each start of an engine makes a new one, of at most MOST_BYTES.

    Args:
        directory: of the file; made if it does not exist.
        block_tokens: tokens of a block.
        stride: hashes per block.
        figures: where a failure is counted.

    Raises:
        SettingsError: the file cannot be made.
    """

    def __init__(self, directory: Path, block_tokens: int, stride: int, figures: Figures) -> None:
        self.block_tokens, self.stride, self.figures = block_tokens, stride, figures
        self._secret = secrets.token_bytes(32)
        self._start = time.monotonic()
        self._requests, self._left = 0, MOST_BYTES
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self.path = directory / f"requests-{stamp}-{os.getpid()}-{secrets.token_hex(4)}.jsonl"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._file: TextIO | None = self.path.open("x", encoding="ascii", buffering=1)
            self._write({"format": FORMAT, "version": VERSION, "block_tokens": block_tokens})
        except OSError as error:
            raise SettingsError(
                f"trace_dir: expected a directory to write to, found {directory}: {error}"
            ) from error
        logger.info("recording lengths, times and hashes of requests to %s", self.path)

    def arrived(self, tracked: Tracked) -> None:
        """Notes the arrival of a request."""
        tracked.arrival = time.monotonic()

    def finished(self, tracked: Tracked) -> None:
        """Writes one request. After a failure, or behind the most bytes, nothing is written."""
        if self._file is None:
            return
        request = tracked.request
        blocks = request.num_prompt_tokens // self.block_tokens
        keys = request.block_hashes[self.stride - 1 :: self.stride][:blocks]
        try:
            self._write(
                {
                    "timestamp": round((tracked.arrival - self._start) * 1000, 3),
                    "input_length": request.num_prompt_tokens,
                    "output_length": request.num_output_tokens,
                    "hash_ids": [self._hash(tracked.run.namespace, key) for key in keys],
                    **self._hints(tracked),
                }
            )
            self._requests += 1
        except OSError as error:
            logger.error("the recording %s ends: %s", self.path, error)
            self.figures.count("failures", label="recording")
            self.close()

    def _hints(self, tracked: Tracked) -> dict[str, object]:
        """The hints of a request that differ from the defaults, for the file."""
        hints, nothing = tracked.hints, NOTHING
        found: dict[str, object] = {}
        if hints.session is not None:
            name = session_name(hints.session, tracked.request.cache_salt)
            found["session"] = self._digest(b"session" + name)
        if hints.priority != nothing.priority:
            found["priority"] = hints.priority
        if hints.retain != nothing.retain:
            found["retain"] = hints.retain
        if hints.store != nothing.store:
            found["store"] = hints.store
        if hints.expect_in is not None:
            found["expect_in"] = hints.expect_in
        if hints.release:
            found["release"] = True
        return found

    def _hash(self, namespace: int, key: bytes) -> str:
        return self._digest(namespace.to_bytes(4, "little") + key)

    def _digest(self, message: bytes) -> str:
        return hashlib.blake2b(message, digest_size=8, key=self._secret).hexdigest()

    def _write(self, line: dict[str, object]) -> None:
        if self._file is None:
            return
        text = json.dumps(line, separators=(",", ":")) + "\n"
        self._left -= len(text)
        if self._left < 0:
            said = "the recording %s ends with %d requests: another would take it above %d bytes"
            logger.warning(said, self.path, self._requests, MOST_BYTES)
            self.close()
            return
        self._file.write(text)

    def close(self) -> None:
        """Closes the file. The second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:  # the rest of its buffer is lost
                logger.error("the recording %s was not closed: %s", self.path, error)
