"""Command lines in the documents: vLLM's own parser takes them, and so does `doctor`."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

from hybrid_pages.doctor.serve_arguments import read_command
from hybrid_pages.vllm.config.settings import Settings

ROOT = Path(__file__).parents[2]
# Also behind variables of its environment.
SERVE = re.compile(r"(?:[A-Z_]+=\S+ )*vllm serve")
# Of the server alone, which this parser does not have.
SERVER = {"--enable-prompt-tokens-details", "--headless"}


def commands(text):
    """Every `vllm serve` of a document that names all of its options, as words."""
    lines = iter(line.removeprefix("    ") for line in text.splitlines())
    for line in lines:
        if SERVE.match(line):
            while line.endswith("\\") or line.count("'") % 2:
                line = f"{line.removesuffix(chr(92))} {next(lines)}"
            if "..." not in line:
                yield shlex.split(SERVE.sub("vllm serve", line))


def shown():
    """Those of all documents, and of the files to deploy."""
    files = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    found = [(file.stem, words) for file in files for words in commands(file.read_text())]
    (deployment, *_) = yaml.safe_load_all((ROOT / "docs/deploy/kubernetes.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    found.append(("kubernetes", ["vllm", "serve", *container["args"]]))
    return [pytest.param(words, id=f"{name}-{at}") for at, (name, words) in enumerate(found)]


@pytest.fixture(scope="module")
def parser():
    return AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())


def test_there_are_commands():
    assert len(shown()) > 10


@pytest.mark.parametrize("words", shown())
def test_vllm_takes_the_command(words, parser):
    assert words[:2] == ["vllm", "serve"]
    options = [word for word in words[2:] if word not in SERVER]
    arguments = parser.parse_args(["--model", *options])
    ours = read_command(words).ours()
    assert (ours is None) == (arguments.kv_transfer_config is None)
    if ours is not None:
        assert Settings.parse(ours.get("kv_connector_extra_config") or {})
