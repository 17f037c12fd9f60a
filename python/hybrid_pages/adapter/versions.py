"""Supported versions of the packages that adapters work with."""

import re
from dataclasses import dataclass

from hybrid_pages.adapter.errors import VersionError


@dataclass(frozen=True)
class Supported:
    """A range of versions, by major and minor number: from ``first`` up to, but without, ``end``.

    user: the part of this package that works with them. remedy: what to do about any other.
    """

    user: str
    package: str
    first: tuple[int, int]
    end: tuple[int, int] | None
    remedy: str

    @property
    def range(self) -> str:
        """As in a requirement: ``>=0.32,<0.34``."""
        low = f">={_dotted(self.first)}"
        return low if self.end is None else f"{low},<{_dotted(self.end)}"

    def includes(self, version: str) -> bool:
        """Whether a version, as the package writes it itself, is in the range."""
        found = re.match(r"(\d+)\.(\d+)", version)
        if found is None:
            return False
        numbers = int(found[1]), int(found[2])
        return self.first <= numbers and (self.end is None or numbers < self.end)

    def require(self, version: str) -> None:
        """Rejects a version outside the range.

        Raises:
            VersionError: names the range, what was found and what to do.
        """
        if not self.includes(version):
            raise VersionError(
                f"{self.user} works with {self.package}{self.range}, found {version}: {self.remedy}"
            )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
