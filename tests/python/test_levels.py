"""Imports point strictly down, as ARCHITECTURE.md promises; an import that does not is found."""

import re
import shutil
from pathlib import Path

import pytest

import levels

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGE = Path("python/hybrid_pages")
TIERS = ("tiers/disk", "tiers/kit", "tiers/mooncake", "tiers/remote")
CRATES = ("rust/core", "rust/cuda", "rust/lab", *(f"rust/{crate}" for crate in TIERS))
MEMBERS = ("cuda", "lab", "python", *TIERS)


def wrong(heading, edges):
    table = levels.read(DOCUMENT, heading)
    found = {table.violation(importer, imported) for importer, imported in edges}
    return sorted(filter(None, found))


def wrong_in_crate(root, crate):
    return wrong(f"Modules of `{crate}`", levels.rust_imports(root / crate / "src"))


def wrong_in_package(root):
    edges = levels.python_imports(root / PACKAGE)
    return wrong(
        f"Packages of `{PACKAGE}`",
        ((levels.top_level(importer), levels.top_level(imported)) for importer, imported in edges),
    )


@pytest.mark.parametrize("crate", CRATES)
def test_modules_of_a_crate_import_only_from_below(crate):
    assert wrong_in_crate(ROOT, crate) == []


@pytest.mark.parametrize("crate", CRATES)
def test_every_module_of_a_crate_has_one_level(crate):
    table = levels.read(DOCUMENT, f"Modules of `{crate}`")
    listed = [module for row in table.rows for module in row]
    modules = {path.stem for path in (ROOT / crate / "src").iterdir()} - {"lib"}
    assert sorted(listed) == sorted(modules)


def test_crates_depend_only_on_those_below():
    assert wrong("Crates", levels.crate_dependencies(ROOT)) == []


def test_kernels_include_nothing_but_each_other():
    for path in (ROOT / "csrc").glob("*.c*"):
        included = re.findall(r"^\s*#\s*include\s+(.*)", path.read_text(), re.M)
        assert all((ROOT / "csrc" / name.strip('"')).is_file() for name in included), path


def test_packages_import_only_from_below():
    assert wrong_in_package(ROOT) == []


def test_every_package_has_one_level():
    table = levels.read(DOCUMENT, f"Packages of `{PACKAGE}`")
    listed = [package for row in table.rows for package in row]
    found = {path.stem for path in (ROOT / PACKAGE).iterdir() if path.suffix == ".py"}
    found |= {path.parent.name for path in (ROOT / PACKAGE).glob("*/__init__.py")}
    assert sorted(listed) == sorted(found | {"_core"})


def test_no_python_module_imports_itself_by_way_of_others():
    edges = set(levels.python_imports(ROOT / PACKAGE, types=False))
    assert levels.circles(edges) == []


# Such imports are found.


def planted(tmp_path, folder, name, line):
    """A copy of the folder, in a root of its own, with one more line in a file."""
    shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so"))
    with (tmp_path / folder / name).open("a") as file:
        file.write(f"\n{line}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("crate", "name", "line", "found"),
    [
        ("rust/core", "src/ids.rs", "use crate::cache::Cache;", "ids -> cache"),
        ("rust/core", "src/prefix/joint.rs", "use crate::{error, tier::Arena};", "prefix -> tier"),
        ("rust/core", "src/prefix/joint.rs", "use super::super::cache::Hit;", "prefix -> cache"),
        ("rust/core", "src/slot/mod.rs", "fn f(_: crate::prefix::Hit) {}", "slot -> prefix"),
        ("rust/cuda", "src/driver/mod.rs", "use crate::engine::CudaEngine;", "driver -> engine"),
        ("rust/lab", "src/bound.rs", "pub(crate) use super::lab::Lab;", "bound -> lab"),
    ],
)
def test_an_upward_import_in_rust_is_found(tmp_path, crate, name, line, found):
    assert any(
        text.startswith(found)
        for text in wrong_in_crate(planted(tmp_path, crate, name, line), crate)
    )


def test_an_import_in_a_comment_or_a_string_is_none(tmp_path):
    line = '// use crate::cache::Cache;\nconst TEXT: &str = "use crate::cache::Cache;";'
    assert wrong_in_crate(planted(tmp_path, "rust/core", "src/ids.rs", line), "rust/core") == []


def test_an_upward_dependency_of_a_crate_is_found(tmp_path):
    for manifest in (
        "Cargo.toml",
        *(f"rust/{crate}/Cargo.toml" for crate in MEMBERS),
    ):
        (tmp_path / manifest).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / manifest).read_text()
        if manifest == "rust/cuda/Cargo.toml":
            text = text.replace(
                "[dependencies]", '[dependencies]\nhybrid-pages-lab = { path = "../lab" }'
            )
        (tmp_path / manifest).write_text(text)
    (found,) = wrong("Crates", levels.crate_dependencies(tmp_path))
    assert found.startswith("rust/cuda -> rust/lab")


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("arguments.py", "import hybrid_pages.vllm.config.settings", "arguments -> vllm"),
        ("batch/step.py", "from hybrid_pages.vllm import CONNECTOR", "batch -> vllm"),
        (
            "batch/step.py",
            "def f():\n    from ..transformers.store import CacheStore",
            "batch -> transformers",
        ),
        ("transformers/store.py", "from hybrid_pages import batch", "transformers -> batch"),
        ("lab/budgets.py", "from hybrid_pages.demo.models import VOCAB", "lab -> demo"),
        ("vllm/messages.py", "from hybrid_pages import cli", "vllm -> cli"),
        ("arguments.py", "import hybrid_pages.none", None),
    ],
)
def test_an_upward_import_in_python_is_found(tmp_path, name, line, found):
    before = wrong_in_package(ROOT)
    after = wrong_in_package(planted(tmp_path, str(PACKAGE), name, line))
    added = [text for text in after if text not in before]
    assert len(added) == (found is not None)
    assert all(text.startswith(found) for text in added)


def test_a_module_without_a_level_is_found(tmp_path):
    root = planted(tmp_path, str(PACKAGE), "batch/step.py", "from hybrid_pages import extra")
    (root / PACKAGE / "extra.py").touch()
    assert any(text.startswith("extra: expected in a table") for text in wrong_in_package(root))


def test_modules_that_import_each_other_are_found(tmp_path):
    root = planted(
        tmp_path, str(PACKAGE), "batch/checks.py", "from hybrid_pages.batch import batch"
    )
    edges = set(levels.python_imports(root / PACKAGE, types=False))
    assert "hybrid_pages.batch.checks" in levels.circles(edges)
