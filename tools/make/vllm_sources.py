"""Fetches the Python files and the metadata of a vLLM: `vllm_sources.py REQUIREMENT FOLDER`.

They are enough for vLLM's scheduler, and a tenth of what its wheel holds.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

requirement, folder = map(Path, sys.argv[1:])
shutil.rmtree(folder, ignore_errors=True)
with tempfile.TemporaryDirectory(dir=folder.parent) as fetched:
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    download += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--dest", fetched]
    subprocess.run([*download, "-r", requirement], check=True)
    with zipfile.ZipFile(next(Path(fetched).glob("*.whl"))) as wheel:
        names = [name for name in wheel.namelist() if name.endswith(".py") or ".dist-info/" in name]
        wheel.extractall(folder, names)
