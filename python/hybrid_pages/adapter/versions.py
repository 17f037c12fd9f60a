"""Supported versions of the packages that integrations work with."""

import logging
import re
from dataclasses import dataclass

from hybrid_pages.adapter.errors import VersionError

_log = logging.getLogger(__name__)
_warned: set[tuple[str, str, str]] = set()


@dataclass(frozen=True)
class Supported:
    """A range of versions, by their numbers: from ``first`` up to, but without, ``end``.

    user: the part of this package that uses the other package. remedy: what to do about a version
    outside the range. tested: the versions that tests have run, the newest last. Newer ones in the
    range are used, too, after one warning.
    """

    user: str
    package: str
    first: tuple[int, ...]
    end: tuple[int, ...] | None
    remedy: str
    tested: tuple[str, ...] = ()

    @property
    def range(self) -> str:
        """The range as a requirement: ``>=0.32,<0.34``."""
        low = f">={_dotted(self.first)}"
        return low if self.end is None else f"{low},<{_dotted(self.end)}"

    def includes(self, version: str) -> bool:
        """Whether a version, such as ``0.32.1rc2``, is in the range."""
        numbers = _numbers(version)
        if numbers is None:
            return False
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

    def is_newer(self, version: str) -> bool:
        """Whether a version is newer than all tested ones of its line.

        Its line: the tested versions with the same first two numbers, or all tested versions if
        none has these.
        """
        numbers = _numbers(version)
        if numbers is None or not self.tested:
            return False
        tested = [found for each in self.tested if (found := _numbers(each)) is not None]
        line = [found for found in tested if found[:2] == numbers[:2]]
        return numbers > max(line or tested)

    def warn_if_newer(self, version: str, log: logging.Logger = _log) -> None:
        """Logs once that a version is newer than those that tests have run."""
        key = self.user, self.package, version
        if self.is_newer(version) and key not in _warned:
            _warned.add(key)
            log.warning(
                "%s: expected %s %s, which tests have run, found the newer %s: it is used all the "
                "same; where answers matter, compare them first, or %s",
                self.user,
                self.package,
                " or ".join(self.tested),
                version,
                self.remedy,
            )


def is_since(version: str, first: tuple[int, ...]) -> bool:
    """Whether a version is ``first`` or later. One without numbers is not."""
    numbers = _numbers(version)
    return numbers is not None and numbers >= first


def _numbers(version: str) -> tuple[int, int, int] | None:
    """The first three numbers of a version, 0 for a missing third."""
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3] or 0))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
