"""Reads whole replies over HTTP within some seconds, however slowly their bytes come."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any

from hybrid_pages import HybridPagesError

_MOST_BYTES = 64 << 20


class ReplyError(HybridPagesError, OSError):
    """A reply is too long, ends early, or takes too long."""


class _Deadline:
    """So many seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._until, self._seconds = time.monotonic() + seconds, seconds

    def left(self) -> float:
        """The seconds that are left."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise self.passed()
        return left

    def passed(self) -> ReplyError:
        """The error of a reply that has not come by then."""
        return ReplyError(f"it takes more than {self._seconds:g} s")


class _Received(io.RawIOBase):
    """What comes through a socket in time. Its own timeout is for each piece alone."""

    def __init__(self, sock: socket.socket, deadline: _Deadline) -> None:
        self._socket, self._deadline = sock, deadline
        self._pieces = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        try:
            self._socket.settimeout(self._deadline.left())
            return self._pieces.readinto(buffer)
        except TimeoutError:
            raise self._deadline.passed() from None

    def close(self) -> None:
        self._pieces.close()
        super().close()

    def makefile(self, mode: str) -> io.BufferedReader:
        """What a reply reads, in the place of the socket's."""
        return io.BufferedReader(self)


class _Within(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Connections whose replies come within some seconds."""

    def __init__(self, seconds: float) -> None:
        urllib.request.AbstractHTTPHandler.__init__(self)
        self._deadline = _Deadline(seconds)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(self._connection, http.client.HTTPSConnection), req)

    def _connection(
        self, kind: Callable[..., http.client.HTTPConnection], host: str, **_: Any
    ) -> http.client.HTTPConnection:
        connection = kind(host, timeout=self._deadline.left())
        connection.response_class = self._reply  # type: ignore[assignment]
        return connection

    def _reply(self, sock: socket.socket, *args: Any, **more: Any) -> http.client.HTTPResponse:
        received: Any = _Received(sock, self._deadline)
        return http.client.HTTPResponse(received, *args, **more)


def read(request: str | urllib.request.Request, seconds: float) -> bytes:
    """A whole reply, which comes within some seconds.

    Raises:
        ReplyError: it is too long, ends early, or takes too long.
        OSError: there is none.
        ValueError, http.client.HTTPException: it does not follow HTTP.
    """
    body = bytearray()
    with urllib.request.build_opener(_Within(seconds)).open(request) as reply:
        while piece := reply.read1(_MOST_BYTES):
            body += piece
            if len(body) > _MOST_BYTES:
                raise ReplyError(f"it has more than {_MOST_BYTES >> 20} MiB")
        if reply.length:
            raise ReplyError(f"it ends {reply.length} bytes early")
    return bytes(body)
