"""Imports point strictly down, as ARCHITECTURE.md promises; an import that does not is found."""

import re
import shutil
from pathlib import Path

import pytest

import levels
import rust_files

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGE = Path("python/hybrid_pages")
PACKAGES = ("", "vllm", "vllm.scheduler")
CRATES = sorted(str(path.parents[1].relative_to(ROOT)) for path in ROOT.glob("rust/**/src/lib.rs"))
# Of conversion alone, file by file, no order is to be learned.
WITH_LEVELS = [crate for crate in CRATES if crate != "rust/python"]


def wrong(tree, edges):
    table = levels.read(DOCUMENT, tree)
    found = {table.violation(importer, imported) for importer, imported in edges}
    return sorted(filter(None, found))


def wrong_in_crate(root, crate):
    return wrong(crate, rust_files.module_edges(root / crate / "src"))


def wrong_in_package(root, inner=""):
    tree = PACKAGE.joinpath(*inner.split("."))
    return wrong(str(tree), levels.package_edges(root / PACKAGE, inner))


def listed(tree):
    return sorted(module for row in levels.read(DOCUMENT, tree).rows for module in row)


def circles_in_crate(root, crate):
    source = f"{crate}/src"
    return {f"{source}/{file}" for file in levels.circles(rust_files.file_edges(root / source))}


def circles_in_package(root):
    return set(levels.circles(set(levels.python_imports(root / PACKAGE))))


@pytest.mark.parametrize("crate", WITH_LEVELS)
def test_modules_of_a_crate_import_only_from_below(crate):
    assert wrong_in_crate(ROOT, crate) == []


@pytest.mark.parametrize("crate", WITH_LEVELS)
def test_every_module_of_a_crate_has_one_level(crate):
    assert listed(crate) == sorted(
        {path.stem for path in (ROOT / crate / "src").iterdir()} - {"lib"}
    )


def test_crates_depend_only_on_those_below():
    assert wrong("rust", levels.crate_dependencies(ROOT)) == []
    assert listed("rust") == CRATES


def test_kernels_include_nothing_but_each_other():
    for path in (ROOT / "csrc").glob("*.c*"):
        included = re.findall(r"^\s*#\s*include\s+(.*)", path.read_text(), re.M)
        assert all((ROOT / "csrc" / name.strip('"')).is_file() for name in included), path


@pytest.mark.parametrize("inner", PACKAGES)
def test_packages_import_only_from_below(inner):
    assert wrong_in_package(ROOT, inner) == []


@pytest.mark.parametrize("inner", PACKAGES)
def test_every_package_has_one_level(inner):
    tree = PACKAGE.joinpath(*inner.split("."))
    found = {path.stem for path in (ROOT / tree).glob("*.py")}
    found |= {path.parent.name for path in (ROOT / tree).glob("*/__init__.py")}
    assert listed(str(tree)) == sorted(found | (set() if inner else {"_core"}))


@pytest.mark.parametrize("crate", CRATES)
def test_no_file_of_a_crate_uses_itself_by_way_of_others(crate):
    assert circles_in_crate(ROOT, crate) == set()


def test_no_python_module_imports_itself_by_way_of_others():
    assert circles_in_package(ROOT) == set()


def test_every_module_says_first_what_it_is():
    begins = {path: "//!" for crate in CRATES for path in (ROOT / crate).rglob("*.rs")}
    begins |= dict.fromkeys((ROOT / PACKAGE).rglob("*.py"), '"""')
    assert [path for path, start in begins.items() if not path.read_text().startswith(start)] == []


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
        ("rust/core", "src/slab.rs", "use crate::cache::Cache;", "slab -> cache"),
        ("rust/core", "src/prefix/joint.rs", "use crate::{slab, tier::Arena};", "prefix -> tier"),
        ("rust/core", "src/prefix/joint.rs", "use super::super::cache::Hit;", "prefix -> cache"),
        ("rust/core", "src/slot/mod.rs", "fn f(_: crate::prefix::Hit) {}", "slot -> prefix"),
        ("rust/cuda", "src/driver/mod.rs", "use crate::engine::CudaEngine;", "driver -> engine"),
        (
            "rust/lab",
            "src/bound.rs",
            "pub(crate) use super::one_replay::OneReplay;",
            "bound -> one_replay",
        ),
    ],
)
def test_an_upward_import_in_rust_is_found(tmp_path, crate, name, line, found):
    assert any(
        text.startswith(found)
        for text in wrong_in_crate(planted(tmp_path, crate, name, line), crate)
    )


def test_an_import_in_a_comment_or_a_string_is_none(tmp_path):
    line = '// use crate::cache::Cache;\nconst TEXT: &str = "use crate::cache::Cache;";'
    assert wrong_in_crate(planted(tmp_path, "rust/core", "src/slab.rs", line), "rust/core") == []


def test_an_upward_dependency_of_a_crate_is_found(tmp_path):
    members = [crate for crate in CRATES if crate != "rust/core"]
    for manifest in ("Cargo.toml", *(f"{crate}/Cargo.toml" for crate in members)):
        (tmp_path / manifest).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / manifest).read_text()
        if manifest == "rust/cuda/Cargo.toml":
            text = text.replace(
                "[dependencies]", '[dependencies]\nhybrid-pages-lab = { path = "../lab" }'
            )
        (tmp_path / manifest).write_text(text)
    (found,) = wrong("rust", levels.crate_dependencies(tmp_path))
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


def test_an_upward_import_inside_a_package_is_found(tmp_path):
    line = "if TYPE_CHECKING:\n    from hybrid_pages.vllm.worker.half import WorkerHalf"
    root = planted(tmp_path, str(PACKAGE), "vllm/layout/grid.py", line)
    (found,) = wrong_in_package(root, "vllm")
    assert found.startswith("layout -> worker")


def test_a_module_without_a_level_is_found(tmp_path):
    root = planted(tmp_path, str(PACKAGE), "batch/step.py", "from hybrid_pages import extra")
    (root / PACKAGE / "extra.py").touch()
    assert any(text.startswith("extra: expected in the l") for text in wrong_in_package(root))


@pytest.mark.parametrize(
    "line",
    [
        "from hybrid_pages.batch import batch",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .batch import Batch",
    ],
)
def test_modules_that_import_each_other_are_found(tmp_path, line):
    root = planted(tmp_path, str(PACKAGE), "batch/checks.py", line)
    assert "hybrid_pages.batch.checks" in circles_in_package(root)


@pytest.mark.parametrize(
    ("crate", "name", "line"),
    [
        ("rust/cuda", "src/driver/table.rs", "use super::stream::Stream;"),
        ("rust/cuda", "src/driver/table.rs", "fn f(_: &crate::driver::Stream) {}"),
        ("rust/cuda", "src/driver/table.rs", "mod t { use super::super::{Stream as S}; }"),
        ("rust/cuda", "src/driver/table.rs", "use super::*;\nfn f(_: &Stream) {}"),
        ("rust/cuda", "src/driver/table.rs", "use crate::driver;\nfn f(_: &driver::Stream) {}"),
        ("rust/cuda", "src/pinning/cuts.rs", "use super::Pinning;"),
        ("rust/python", "src/number.rs", "use crate::cache::PyCache;"),
        ("rust/python", "src/error.rs", "use crate::arena::PyArena;"),
    ],
)
def test_files_that_use_each_other_are_found(tmp_path, crate, name, line):
    assert f"{crate}/{name}" in circles_in_crate(planted(tmp_path, crate, name, line), crate)


@pytest.mark.parametrize(
    "line",
    [
        "// use super::stream::Stream;",
        "/* fn f(_: &crate::driver::Stream) {} */",
        'const TEXT: &str = "crate::driver::Stream::new";',
        "pub use super::stream::Stream;",
        "use super::*;",
    ],
)
def test_what_uses_nothing_makes_no_circle(tmp_path, line):
    root = planted(tmp_path, "rust/cuda", "src/driver/table.rs", line)
    assert circles_in_crate(root, "rust/cuda") == set()
