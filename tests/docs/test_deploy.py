"""The files in `docs/deploy/`: valid for who reads them, and one command line in all of them."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from hybrid_pages.doctor.serve_arguments import read_command
from hybrid_pages.vllm import CONNECTOR
from hybrid_pages.vllm.config.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
KUBERNETES = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNIT = (DEPLOY / "vllm.service").read_text()
GIB = {"G": 1, "g": 1, "Gi": 1}


def gib(text):
    number, unit = re.fullmatch(r"(\d+)(\w+)", text).groups()
    return int(number) * GIB[unit]


def pod():
    return KUBERNETES[0]["spec"]["template"]["spec"]


def unit(name):
    """A setting of the unit; continued lines are joined by a space, as systemd does."""
    return re.search(rf"^{name}=(.*)$", UNIT.replace("\\\n", " "), re.MULTILINE).group(1)


def commands():
    """The words behind `vllm serve`, by file."""
    words = shlex.split(unit("ExecStart"))
    assert words[:2] == ["/opt/vllm/bin/vllm", "serve"]
    return {
        "kubernetes.yaml": pod()["containers"][0]["args"],
        "compose.yaml": COMPOSE["services"]["vllm"]["command"],
        "vllm.service": words[2:],
    }


def settings(words):
    ours = read_command(["vllm", "serve", *words]).ours()
    assert (ours["kv_connector"], ours["kv_role"]) == (CONNECTOR, "kv_both")
    return Settings.parse(ours["kv_connector_extra_config"])


@pytest.mark.parametrize("resource", KUBERNETES, ids=lambda resource: resource["kind"])
def test_the_manifest_fits_the_schemas_of_kubernetes(resource):
    for version in ("1.30", "1.37"):
        kubernetes_validate.validate(resource, version, strict=True)


def test_a_manifest_with_a_wrong_field_is_found():
    wrong = json.loads(json.dumps(KUBERNETES[0]))
    wrong["spec"]["template"]["spec"]["containers"][0]["arg"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.37", strict=True)


def test_the_claims_of_the_pod_are_there():
    claims = {it["metadata"]["name"] for it in KUBERNETES if it["kind"] == "PersistentVolumeClaim"}
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    mounted = {mount["name"] for mount in pod()["containers"][0]["volumeMounts"]}
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in volumes.values()
        if "persistentVolumeClaim" in volume
    }
    assert mounted == set(volumes)
    assert used == claims
    assert set(COMPOSE["volumes"]) == {
        volume.split(":")[0] for volume in COMPOSE["services"]["vllm"]["volumes"]
    }


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path):
    file = tmp_path / "vllm.service"
    file.write_text(UNIT.replace("/opt/vllm/bin/vllm", "/bin/true"))
    words = ["systemd-analyze", "verify", file]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_all_files_run_the_same_engine():
    read = {name: read_command(["vllm", "serve", *words]) for name, words in commands().items()}
    assert {command.model for command in read.values()} == {"Qwen/Qwen3.6-27B"}
    assert {command.text("max-num-batched-tokens") for command in read.values()} == {"8192"}
    kept = [settings(words) for words in commands().values()]
    assert {(one.host_gb, one.disk_gb) for one in kept} == {(64.0, 400.0)}


def test_memory_holds_the_cache_the_shared_memory_and_the_engine():
    asked, shared = pod()["containers"][0]["resources"], pod()["volumes"][-1]["emptyDir"]
    assert asked["limits"] == asked["requests"]
    service = COMPOSE["services"]["vllm"]
    budget = settings(commands()["kubernetes.yaml"]).host_gb
    for limit, shm in (
        (asked["limits"]["memory"], shared["sizeLimit"]),
        (service["mem_limit"], service["shm_size"]),
        (unit("MemoryMax"), "0G"),
    ):
        assert gib(limit) >= budget + gib(shm) + 16


def test_the_disk_tier_is_on_a_volume_of_its_own():
    for name, where in (("kubernetes.yaml", "/cache"), ("compose.yaml", "/cache")):
        assert settings(commands()[name]).disk_path == f"{where}/hybrid-pages"
    mounts = {mount["mountPath"] for mount in pod()["containers"][0]["volumeMounts"]}
    assert {"/cache", "/dev/shm"} <= mounts
    cache = Path("/var/cache") / unit("CacheDirectory")
    assert Path(settings(commands()["vllm.service"]).disk_path).parent == cache
    # Two engines never use one directory.
    assert KUBERNETES[0]["spec"]["strategy"]["type"] == "Recreate"
    assert KUBERNETES[0]["spec"]["replicas"] == 1


def test_the_image_is_of_a_vllm_that_is_supported():
    written = (DEPLOY / "Dockerfile").read_text()
    version, base = re.search(
        r"^ARG VLLM_VERSION=(\S+)\nFROM (\S+):v\$\{VLLM_VERSION\}$", written, re.M
    ).groups()
    assert base == "vllm/vllm-openai"
    supported = (ROOT / "python/hybrid_pages/vllm/versions/supported.py").read_text()
    assert f'"{version}"' in supported
    images = {COMPOSE["services"]["vllm"]["image"], pod()["containers"][0]["image"]}
    assert {image.rpartition(":")[2] for image in images} == {version}
