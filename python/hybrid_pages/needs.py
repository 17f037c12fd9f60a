"""What a part of the package says where something that it needs can't be imported."""


def missing(part: str, needed: str, install: str, cause: ImportError) -> ImportError:
    """The error for a ``part`` that was imported without what it ``needed``."""
    return ImportError(f"{part} needs {needed}, found {str(cause)!r}: {install}", name=cause.name)
