"""Objects that hold threads or memory until they are closed."""

from abc import ABC, abstractmethod
from typing import TypeVar

_Self = TypeVar("_Self", bound="Closing")


class Closing(ABC):
    """An object that is closed at the end of a ``with`` block."""

    @abstractmethod
    def close(self) -> None:
        """Ends threads of its own. The second call does nothing."""

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
