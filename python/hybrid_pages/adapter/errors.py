"""Errors that several integrations raise. Each is a ``HybridPagesError``."""

from hybrid_pages._core import HybridPagesError, InvalidArgumentError


class UnsupportedError(HybridPagesError, RuntimeError):
    """A model, a cache, an engine or a configuration that is not known to work."""


class VersionError(UnsupportedError, ImportError):
    """A version of a package that is outside the supported range."""


class MissingError(HybridPagesError, ImportError):
    """A package that a part of this package needs and that cannot be imported."""


class SettingsError(InvalidArgumentError):
    """A setting that is unknown, of the wrong type or impossible."""


class EngineError(HybridPagesError, RuntimeError):
    """The engine broke a rule that this package relies on, such as the order of calls."""


def missing(part: str, needed: str, install: str, cause: ImportError) -> MissingError:
    """The error for a part of this package whose import failed.

    part: its name. needed: the packages it needs. install: how to get them. cause: what failed.
    """
    message = f"{part} needs {needed}, found {str(cause)!r}: {install}"
    return MissingError(message, name=cause.name)
