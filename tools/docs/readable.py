"""What the site changes in the docstrings and stubs that it shows."""

from __future__ import annotations

import re

from griffe import Alias, Extension, Module, Object

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`[~!]?([^`]+)`")


class Readable(Extension):
    """Shows Sphinx's roles as code, and the constructors of compiled classes as signatures."""

    def on_package(self, *, pkg: Module, **_: object) -> None:
        """Called once all of a package has been read."""
        _rewrite(pkg)


def _rewrite(obj: Object) -> None:
    if obj.docstring is not None:
        obj.docstring.value = _ROLE.sub(r"`\1`", obj.docstring.value).replace("``", "`")
    if obj.is_class and "__new__" in obj.members and "__init__" not in obj.members:
        obj.members["__init__"] = obj.members.pop("__new__")
    for member in obj.members.values():
        if not isinstance(member, Alias):
            _rewrite(member)
