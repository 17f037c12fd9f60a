"""What is published runs where it says, states what it is made of, and is accepted by an index.

`make check-release` builds it first; `make check-dist` takes what is in dist/.
"""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

import licences
from distributions import (
    DIST,
    LIBRARY,
    PROMISED,
    ROOT,
    WHEELS,
    bill,
    contents,
    library,
    needs,
)

BIN = Path(sys.executable).parent
GLIBC = (2, 28)
every_wheel = pytest.mark.parametrize("wheel", WHEELS, ids=lambda wheel: wheel.name)


def tool(name, *words):
    """A tool of this environment: exit status, and all that it printed."""
    done = subprocess.run(
        [BIN / name, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.returncode, done.stdout


def damaged(wheel, folder, end, found):
    """A copy of a wheel with other bytes in the file whose name ends so."""
    copy = folder / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(copy, "w") as new:
        for name in old.namelist():
            new.writestr(name, found if name.endswith(end) else old.read(name))
    return copy


def compiled_for(glibc, machine, folder):
    """A small library that needs a newer glibc's symbol where there is one."""
    source, out = folder / "small.c", folder / "small.so"
    source.write_text("int gettid(void); int small(void) { return gettid(); }\n")
    words = ["-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{glibc}", "-shared", "-o"]
    subprocess.run([sys.executable, *words, out, source], check=True, cwd=folder)
    return out.read_bytes()


def test_there_is_a_wheel_and_a_source_distribution():
    assert WHEELS, f"expected wheels in {DIST}: make wheel"
    assert len(list(DIST.glob("*.tar.gz"))) == 1, f"expected one source distribution in {DIST}"


@every_wheel
def test_a_wheel_is_tagged_for_glibc_2_28(wheel):
    assert re.search(r"-manylinux_2_(\d+)_\w+\.whl$", wheel.name)[1] == str(GLIBC[1])


@every_wheel
def test_the_library_needs_no_newer_glibc_and_no_other_library(wheel):
    libraries, glibc = needs(library(wheel))
    assert {name for name in libraries if not PROMISED.fullmatch(name)} == set()
    assert glibc <= GLIBC


def test_a_library_for_a_newer_glibc_is_found(tmp_path):
    libraries, glibc = needs(compiled_for("2.34", "x86_64", tmp_path))
    assert all(PROMISED.fullmatch(name) for name in libraries)
    assert glibc > GLIBC


@every_wheel
def test_auditwheel_finds_the_wheel_as_old_as_its_tag(wheel):
    status, said = tool("auditwheel", "show", wheel)
    assert status == 0, said
    (tag,) = re.findall(r'following platform tag:\s*"manylinux_2_(\d+)_\w+"', said)
    assert int(tag) <= GLIBC[1], said


def test_auditwheel_finds_a_newer_glibc(tmp_path):
    wheel = WHEELS[0]
    machine = re.search(r"_(x86_64|aarch64)\.whl$", wheel.name)[1]
    newer = damaged(wheel, tmp_path, LIBRARY, compiled_for("2.34", machine, tmp_path))
    status, said = tool("auditwheel", "show", newer)
    assert status == 0, said
    (tag,) = re.findall(r'following platform tag:\s*"manylinux_2_(\d+)_\w+"', said)
    assert int(tag) > GLIBC[1], said


@every_wheel
def test_the_library_keeps_to_the_stable_interface_of_its_python(wheel):
    status, said = tool("abi3audit", "--strict", wheel)
    assert status == 0, said


def test_an_index_would_take_everything():
    files = [*WHEELS, *DIST.glob("*.tar.gz")]
    status, said = tool("twine", "check", "--strict", *files)
    assert status == 0, said
    assert said.count("PASSED") == len(files)


def test_metadata_that_an_index_would_refuse_is_found(tmp_path):
    metadata = b"Metadata-Version: 2.4\nName: hybrid-pages\nVersion: 0.1.0\n\n"
    status, said = tool(
        "twine", "check", "--strict", damaged(WHEELS[0], tmp_path, "METADATA", metadata)
    )
    assert status == 1, said


@every_wheel
def test_the_licences_of_the_crates_are_in_the_wheel(wheel):
    for name in ("LICENSE", "THIRD-PARTY-LICENSES.txt"):
        (inside,) = contents(wheel, f"dist-info/licenses/{name}").values()
        assert inside == (ROOT / name).read_bytes()


@every_wheel
def test_the_bill_of_materials_is_valid(wheel):
    found = bill(wheel)
    validator = JsonStrictValidator(SchemaVersion.from_version(found["specVersion"]))
    assert validator.validate_str(json.dumps(found)) is None


def test_a_bill_that_is_not_valid_is_found():
    found = bill(WHEELS[0])
    found |= {"components": found["components"][:1], "dependencies": []}
    del found["components"][0]["name"]
    validator = JsonStrictValidator(SchemaVersion.from_version(found["specVersion"]))
    assert "name" in str(validator.validate_str(json.dumps(found)))


@every_wheel
def test_the_bill_names_every_crate_of_the_library(wheel):
    found = bill(wheel)
    components = [found["metadata"]["component"], *found["components"]]
    named = {(component["name"], component["version"]) for component in components}
    (target,) = (it for it in licences.TARGETS if it.partition("-")[0] in wheel.name)
    inside = {(crate.name, crate.version) for crate in licences.crates([target])}
    assert len(inside) > 100
    assert inside - named == set()


@every_wheel
def test_the_bill_says_under_which_licence_each_crate_is(wheel):
    without = [part["name"] for part in bill(wheel)["components"] if not part.get("licenses")]
    assert without == []
