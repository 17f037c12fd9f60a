"""No two types of the crates and the package share a name, unless they are the same thing."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
# One thing for transformers and for mlx-lm; Staging has its base in adapter/.
INTEGRATIONS = {
    "CacheStore",
    "Layout",
    "ModelRuntime",
    "ModelState",
    "ModelWatch",
    "PrefixCache",
    "Reader",
    "Staging",
    "Tokens",
    "Writer",
}
# Of the lab's replay, in Python and in Rust.
SAME_THING = INTEGRATIONS | {"Budget"}


def types_of(path):
    """The names of the types that a file of Rust or Python defines."""
    source = path.read_text()
    if path.suffix == ".py":
        return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    code = re.sub(r"//[^\n]*", "", source)
    return re.findall(r"^\s*(?:pub(?:\([^)]*\))? +)?(?:struct|enum|trait|union) +(\w+)", code, re.M)


def shared_names(paths):
    """Each name that types of several files have, with these files."""
    found = defaultdict(set)
    for path in paths:
        for name in types_of(path):
            found[name].add(path)
    return {
        name: sorted(file.name for file in files) for name, files in found.items() if len(files) > 1
    }


def test_types_have_names_of_their_own():
    rust = ROOT.glob("rust/**/src/**/*.rs")
    python = (
        path
        for path in ROOT.glob("python/hybrid_pages/**/*.py")
        if not path.relative_to(ROOT).match("*/_stubs/*")
    )
    shared = shared_names([*rust, *python])
    assert {name: files for name, files in shared.items() if name not in SAME_THING} == {}
    assert set(shared) == SAME_THING


def test_a_name_that_two_types_share_is_found(tmp_path):
    (tmp_path / "a.rs").write_text("// struct Run;\npub(crate) struct Run {}\nenum Other {}\n")
    (tmp_path / "b.py").write_text("class Run:\n    pass\n")
    assert shared_names(tmp_path.iterdir()) == {"Run": ["a.rs", "b.py"]}
