"""Names of policies, as settings offer them."""

import difflib

from hybrid_pages._core import POLICIES
from hybrid_pages.adapter.errors import SettingsError

OFFERED = ("reuse", "lru")
"""The policies to choose from. The others of ``POLICIES`` are accepted for comparison."""


def require_policy(name: object) -> str:
    """The name of a policy, checked.

    Raises:
        SettingsError: names the policies, and the nearest one.
    """
    if isinstance(name, str) and name in POLICIES:
        return name
    offered = ", ".join(map(repr, OFFERED))
    others = ", ".join(repr(other) for other in POLICIES if other not in OFFERED)
    near = difflib.get_close_matches(str(name), POLICIES, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise SettingsError(
        f"policy: expected one of {offered} (for comparison: {others}), found {name!r}{hint}"
    )
