"""The type stubs of the binding say what the binding has."""

import subprocess
import sys
from importlib.resources import files

import pytest

import hybrid_pages

pytest.importorskip("mypy.stubtest", reason="mypy is not installed")

# The binding is one module, its stubs are one per topic: each is checked as if it were a module
# with the names of the binding.
CHECK = """
import sys, types
from mypy import stubtest
from hybrid_pages import _core

def of_the_binding(name):
    if name == "__all__":
        raise AttributeError(name)
    if name == "_Engine":
        return _core.HostEngine.__base__
    return getattr(_core, name)

config, *topics = sys.argv[1:]
for topic in topics:
    module = sys.modules[topic] = types.ModuleType(topic)
    module.__getattr__ = of_the_binding
words = ["--mypy-config-file", config, "hybrid_pages._core", *topics]
sys.exit(stubtest.test_stubs(stubtest.parse_options(words)))
"""


def topics() -> list[str]:
    stubs = files(hybrid_pages).joinpath("_stubs").iterdir()
    names = sorted(stub.name.removesuffix(".pyi") for stub in stubs)
    return [f"hybrid_pages._stubs.{name}" for name in names if name != "__init__"]


def checked(tmp_path) -> subprocess.CompletedProcess[str]:
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\ncheck_untyped_defs = True\n")
    command = [sys.executable, "-c", CHECK, str(config), *topics()]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)


def test_stubs_match_the_binding(tmp_path):
    assert len(topics()) >= 8
    result = checked(tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
