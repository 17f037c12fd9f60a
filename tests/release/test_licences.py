"""The licences of the crates inside a wheel ask for no more than to keep their notices."""

import pytest
from license_expression import get_spdx_licensing

import licences

# Licences that ask for no more than their text, and the one that the package itself is under.
ACCEPTED = {
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
}
SPDX = get_spdx_licensing()


def accepted(expression):
    """Whether a choice that the expression offers is of accepted licences alone."""
    # Older crates write "/" for OR.
    found = SPDX.parse(expression.replace("/", " OR "), validate=True, strict=True)

    def holds(part):
        if not getattr(part, "operator", None) or str(part) in ACCEPTED:
            return str(part) in ACCEPTED
        return (all if part.operator.strip() == "AND" else any)(map(holds, part.args))

    return holds(found)


def test_every_crate_offers_a_licence_that_is_accepted():
    crates = licences.crates()
    assert len(crates) > 100
    assert [crate for crate in crates if not accepted(crate.licence)] == []


@pytest.mark.parametrize(
    ("expression", "taken"),
    [
        ("MIT/Apache-2.0", True),
        ("GPL-3.0-only OR MIT", True),
        ("GPL-3.0-only AND MIT", False),
        ("ISC AND (Apache-2.0 OR GPL-2.0-only)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
        ("MPL-2.0", False),
    ],
)
def test_a_licence_that_asks_for_more_is_found(expression, taken):
    assert accepted(expression) is taken
