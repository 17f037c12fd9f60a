"""Collects wheels for `make gpu-check`: `gpu_wheels.py REQUIREMENTS SOURCES FOLDER`.

They are for CPython 3.12 on x86-64. One has vLLM's Python files: its own has kernels and 300 MB.
"""

import base64
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

MOST_BYTES = 60 << 20

requirements, sources, folder = map(Path, sys.argv[1:])
shutil.rmtree(folder, ignore_errors=True)
folder.mkdir(parents=True)
download = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
download += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--python-version", "3.12"]
download += ["--platform", "manylinux2014_x86_64"]
for glibc in range(17, 40):
    download += ["--platform", f"manylinux_2_{glibc}_x86_64"]
download += ["--dest", str(folder), "-r", str(requirements)]
subprocess.run(download, check=True)

info = next(sources.glob("vllm-*.dist-info"))
tag = "py3-none-any"
content = {
    str(file.relative_to(sources)): file.read_bytes()
    for pattern in ("vllm/**/*.py", f"{info.name}/*")
    for file in sorted(sources.glob(pattern))
    if file.is_file() and file.name not in ("RECORD", "WHEEL")
}
content[f"{info.name}/WHEEL"] = (
    f"Wheel-Version: 1.0\nGenerator: hybrid-pages\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
)
rows = []
for name, data in content.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    rows.append(f"{name},sha256={digest},{len(data)}\n")
content[f"{info.name}/RECORD"] = "".join([*rows, f"{info.name}/RECORD,,\n"]).encode()
wheel = folder / f"{info.name.removesuffix('.dist-info')}-{tag}.whl"
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
    for name, data in content.items():
        packed.writestr(name, data)
total = sum(file.stat().st_size for file in folder.iterdir())
print(f"{len(list(folder.iterdir()))} wheels of {total / 1e6:.0f} MB in {folder}")
if total > MOST_BYTES:
    sys.exit(f"expected at most {MOST_BYTES >> 20} MiB, found {total >> 20}: carry fewer packages")
