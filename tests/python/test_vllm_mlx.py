"""What of vllm-mlx's server needs neither vllm-mlx nor mlx: versions, and ends of messages."""

from importlib import metadata

import pytest

from hybrid_pages import cli
from hybrid_pages.vllm_mlx import versions
from hybrid_pages.vllm_mlx.message_ends import MessageEnds


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ({}, "vllm-mlx needs vllm-mlx, found "),
        ({"vllm-mlx": "0.5.9"}, "expected vllm-mlx 0.6.0, which tests have run, found 0.5.9"),
        ({"vllm-mlx": "0.6.1"}, "expected vllm-mlx 0.6.0, which tests have run, found 0.6.1"),
        ({"vllm-mlx": "0.6.0rc1"}, "found 0.6.0rc1"),
        ({"vllm-mlx": "0.6.0", "mlx-lm": "0.31.4"}, "expected mlx-lm 0.31.3, which tests have"),
        ({"vllm-mlx": "0.6.0", "mlx-lm": "0.32.2"}, "found 0.32.2"),
    ],
)
def test_a_version_that_no_test_has_seen_is_rejected_by_name(monkeypatch, capsys, installed, said):
    def version(package):
        if package not in installed:
            raise metadata.PackageNotFoundError(package)
        return installed[package]

    monkeypatch.setattr(versions, "version", version)
    assert cli.main(["vllm-mlx", "serve", "some/model"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("hybrid-pages vllm-mlx: vllm-mlx")
    assert said in line
    assert line.endswith(": pip install 'hybrid-pages[vllm-mlx]'")


def render(messages):
    """A template that leaves reasoning out of earlier turns, and begins it in the prompt."""
    if any(each["role"] == "tool" for each in messages[:-1]):
        raise ValueError("no tool results in the middle")
    text = "".join(f"<{each['role']}>{each['content']}<end>" for each in messages)
    return text + "<assistant><think>"


def encode(text):
    return list(text.encode())


def ends(*messages):
    known = MessageEnds()
    made = [{"role": role, "content": content} for role, content in messages]
    prompt = render(made)
    known.note(prompt, made, render)
    found = known.of(prompt, encode(prompt), encode)
    assert known.of(prompt, encode(prompt), encode) == []
    return [prompt[:end] for end in found]


def test_ends_are_where_another_message_and_an_answer_go_on():
    found = ends(("system", "be brief"), ("user", "who?"))
    front = "<system>be brief<end><user>"
    assert found == [front, front + "who?<end><assistant>"]


def test_a_template_that_rejects_other_messages_has_fewer_ends():
    assert ends(("user", "who?"), ("tool", "me")) == ["<user>who?<end><tool>"]


def test_prompts_without_messages_have_none_and_few_are_remembered():
    known = MessageEnds()
    assert known.of("text", encode("text"), encode) == known.of([1, 2], [1, 2], encode) == []
    for number in range(100):
        known.note(f"{number}", [{"role": "user", "content": "x"}], render)
    assert known.of("0", [1], encode) == []
    assert known.of("99", encode("99"), encode) == [0, 0]
