"""The interface between a session and the framework that computes its tokens."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from hybrid_pages._core import LeaseEntry, ReadLease
from hybrid_pages.adapter.entries import Checksums

States = TypeVar("States")
"""The recurrent states at one boundary, in the framework's own form."""


class Runtime(Protocol[States]):
    """A model with a fresh cache of one row, for one request.

    Integrations derive from it. Methods with a body are defaults that fit most runtimes.
    """

    @abstractmethod
    def seen(self) -> int:
        """How many tokens the cache has seen."""
        ...

    @abstractmethod
    def compute(self, start: int, end: int) -> None:
        """Runs the prompt's tokens [start, end) through the model, in one pass."""
        ...

    @abstractmethod
    def states(self) -> States:
        """The recurrent states after the last pass. The next pass may overwrite them."""
        ...

    @abstractmethod
    def keep(self, kept: States | None) -> States:
        """A copy of the recurrent states. kept: an earlier copy, whose memory may be reused."""
        ...

    @abstractmethod
    def copy_out(self, entries: Sequence[LeaseEntry], states: States | None) -> Checksums:
        """Copies entries into their slots: pages from the cache, checkpoints from ``states``.

        Raises:
            TransferError: a copy failed.
        """
        ...

    @abstractmethod
    def copy_in(self, leases: Iterator[ReadLease], blocks: int) -> None:
        """Copies the entries of the leases into the cache, which then has seen ``blocks`` blocks.

        Asking for the next lease releases the one before and may raise TransferError.

        Raises:
            TransferError: a copy failed. The cache is as fresh as before.
        """
        ...

    def first_held(self, class_index: int) -> int:
        """The first token whose pages the layers of a class still hold."""
        return 0

    def continues(self) -> bool:
        """Whether a pass over several tokens starts from the states in the cache.

        If not, the session computes the tokens behind a restored state one by one.
        """
        return True

    def kept_tokens(self) -> int | None:
        """How many of the last tokens every layer of the cache keeps; None for all."""
        return None

    def changed(self) -> bool:
        """Whether the model has changed since the request began; then nothing more is stored."""
        return False

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error means that an allocation failed. Then only that store is given up."""
        return isinstance(error, MemoryError)
