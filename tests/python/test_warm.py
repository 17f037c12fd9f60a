"""`hybrid-pages warm` on a server of made-up tokens: files, cuts, visits, what it says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from hybrid_pages import cli
from hybrid_pages.arguments import WrongArgument
from hybrid_pages.warm import main, visit
from hybrid_pages.warm.beginnings import Beginning, BeginningError, read
from hybrid_pages.warm.cut import cut
from hybrid_pages.warm.server import Server
from openai_server import serving

METRICS = 'vllm:hybrid_pages_block_tokens{engine="0"} 16\n'


class Engine:
    """A server whose tokens are characters, but that "ab" is one, and white space joins up.

    It resumes where a prompt that was stored has ended, or at whole blocks of ``block`` tokens.
    """

    def __init__(self) -> None:
        self.ends: set[tuple[int, ...]] = set()
        self.prompts: list[tuple[tuple[int, ...], dict[str, Any]]] = []
        self.salts: list[str | None] = []
        self.key, self.models, self.parent = "", ("m", "adapter"), "m"
        self.metrics, self.tells, self.broken = METRICS, True, ""
        self.tails, self.late, self.most = True, 0, 4096

    def exposed(self) -> str:
        return self.metrics

    def post(self, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, Any]:
        if self.broken == path:
            return 500, {"error": {"message": "it is\nbroken"}}
        if path != "/tokenize":
            self.salts.append(body.get("cache_salt"))
            cached = self.complete(body["prompt"], body["kv_transfer_params"]["hybrid_pages"])
            details = {"cached_tokens": cached} if self.tells else None
            return 200, {"usage": {"prompt_tokens_details": details}}
        if "messages" not in body:
            return 200, {"tokens": self.tokens(body["prompt"])}
        try:
            text = self.rendered(body["messages"], body["add_generation_prompt"])
        except ValueError as error:
            return 400, {"error": {"message": str(error)}}
        return 200, {"tokens": self.tokens(str(body.get("tools", "")) + text)}

    @staticmethod
    def tokens(text: str) -> list[int]:
        found: list[int] = []
        at = 0
        while at < len(text):
            if text.startswith("ab", at):
                found.append(1000)
                at += 2
            elif text[at].isspace():
                end = at
                while end < len(text) and text[end].isspace():
                    end += 1
                found.append(2000 + end - at)
                at = end
            else:
                found.append(ord(text[at]) % 500)
                at += 1
        return found

    @staticmethod
    def rendered(messages: list[dict[str, Any]], answers: bool) -> str:
        """Earlier reasoning is left out, as many templates do."""
        text, last = "", max((i for i, m in enumerate(messages) if m["role"] == "user"), default=-1)
        for at, message in enumerate(messages):
            words = message["content"]
            if isinstance(words, list):
                words = "".join(part["text"] for part in words)
            if message["role"] == "odd":
                raise ValueError("expected the role system, user or assistant")
            if at < last and "</t>" in words:
                words = words.split("</t>")[1]
            text += f"<{message['role']}>{words}<end>"
        return text + ("<assistant>" if answers else "")

    def complete(self, prompt: list[int], hints: dict[str, Any]) -> int:
        key = tuple(prompt)
        self.prompts.append((key, hints))
        places = {len(end) for end in self.ends if end == key[: len(end)] and len(end) < len(key)}
        cached = max(places, default=0)
        if not self.tails:
            cached = cached // 16 * 16
        elif self.late and len(self.prompts) > 2:
            self.late -= 1
            cached = 0
        if hints.get("store", True):
            self.ends.add(key)
        return cached


@pytest.fixture
def engine() -> Iterator[Any]:
    engine = Engine()
    with serving(engine) as engine.url:
        yield engine


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visit, "WAITS", (0.0,) * 4)
    monkeypatch.setattr(main, "_PATIENCE", 0.3)


def warm(*words: Any) -> int:
    return cli.main(["warm", *map(str, words)])


def written(tmp_path: Any, name: str, given: Any) -> Any:
    path = tmp_path / name
    path.write_text(given if isinstance(given, str) else json.dumps(given))
    return path


# ---- cuts


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Hello a", "Hello a"),  # no continuation begins with b
        ("Hello\n", "Hello"),  # white space that follows joins it
        ("Hello", "Hello"),
    ],
)
def test_a_text_is_cut_where_all_continuations_agree(engine, text, kept):
    found = cut(Server(engine.url), Beginning("x", text=text))
    assert list(found.tokens) == engine.tokens(kept)


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ([("system", "Be kind.")], "<system>Be kind.<end><user>"),
        ([("system", "Be kind."), ("user", "A page")], "<system>Be kind.<end><user>A page"),
        (
            [("user", "Hi"), ("assistant", "<t>so</t>Ho")],
            "<user>Hi<end><assistant>Ho<end><user>",
        ),
    ],
)
def test_a_chat_is_cut_where_all_continuations_agree(engine, messages, kept):
    given = tuple({"role": role, "content": words} for role, words in messages)
    found = cut(Server(engine.url), Beginning("x", messages=given))
    assert list(found.tokens) == engine.tokens(kept)
    assert [*found.tokens, found.after][:-1] == list(found.tokens)


def test_parts_of_a_message_go_on_in_the_last_one(engine):
    parts = [{"type": "text", "text": "A "}, {"type": "text", "text": "page"}]
    found = cut(Server(engine.url), Beginning("x", messages=({"role": "user", "content": parts},)))
    assert list(found.tokens) == engine.tokens("<user>A page")


def test_the_template_gets_tools(engine):
    chat = {"tools": ["saw"]}
    messages = ({"role": "system", "content": "s"},)
    found = cut(Server(engine.url), Beginning("x", messages=messages, chat=chat))
    assert list(found.tokens) == engine.tokens("['saw']<system>s<end><user>")


def test_a_beginning_without_anything_in_common_is_refused(engine):
    with pytest.raises(BeginningError, match="x: expected tokens that every continuation begins"):
        cut(Server(engine.url), Beginning("x", text=" "))


# ---- files


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("a.txt", "some text", [("text", "some text")]),
        ("a", '{"prompt": "no JSON by its name"}', [("text", '{"prompt": "no JSON by its name"}')]),
        ("a.json", [1, 2, 3], [("tokens", (1, 2, 3))]),
        ("a.json", {"prompt_token_ids": [7]}, [("tokens", (7,))]),
        ("a.json", "text", [("text", "{quoted}")]),
        ("a.jsonl", '{"prompt": "x"}\n\n[1]\n', [("text", "x"), ("tokens", (1,))]),
    ],
)
def test_forms_of_files(tmp_path, name, given, expected):
    if expected == [("text", "{quoted}")]:
        given, expected = '"text"', [("text", "text")]
    found = read(str(written(tmp_path, name, given)))
    assert [getattr(each, kind) for each, (kind, _) in zip(found, expected, strict=True)] == [
        value for _, value in expected
    ]


def test_messages_with_tools(tmp_path):
    messages = [{"role": "system", "content": "Be kind."}]
    path = written(tmp_path, "a.json", {"messages": messages, "tools": [{"type": "function"}]})
    (found,) = read(str(path))
    assert found.messages == tuple(messages) and found.chat == {"tools": [{"type": "function"}]}
    (bare,) = read(str(written(tmp_path, "b.json", messages)))
    assert bare.messages == tuple(messages)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("a.txt", "", "a.txt: expected a text, found an empty one"),
        ("a.json", "{", "a.json: expected JSON"),
        ("a.json", "[" * 100_000, "a.json: expected JSON"),
        ("a.json", [], "a.json: expected a list of token ids"),
        ("a.json", [1, True], "expected a list of token ids"),
        ("a.json", [1, -1], "expected a list of token ids"),
        ("a.json", {}, "found an object with nothing"),
        ("a.json", {"prompt": "x", "messages": []}, "found an object with messages, prompt"),
        ("a.json", {"prompt": "x", "tools": []}, "found an object with prompt, tools"),
        ("a.json", "7", "expected a text, a list of token ids"),
        ("a.json", {"prompt": 7}, "expected a text, found int"),
        ("a.json", {"messages": [{"content": "x"}]}, "message 0: expected an object with a role"),
        ("a.json", {"messages": "hello"}, "expected a list of messages"),
        ("a.json", {"messages": [{"role": "user"}]}, "expected words in the last message"),
        (
            "a.json",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "expected text alone, found image_url: send a prompt with images once by a client",
        ),
        ("a.jsonl", "\n", "expected an object a line, found an empty file"),
        ("a.jsonl", '{"prompt": "x"}\nx\n', "a.jsonl:2: expected JSON"),
    ],
)
def test_a_file_without_a_beginning_is_refused(tmp_path, name, given, said):
    with pytest.raises(BeginningError) as raised:
        read(str(written(tmp_path, name, given)))
    assert said in str(raised.value)


def test_other_bad_files_are_refused(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    with pytest.raises(BeginningError, match=r"latin.txt: expected UTF-8, found"):
        read(str(tmp_path / "latin.txt"))
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(WrongArgument, match="FILE: expected a file that can be read"):
            read(str(path))


# ---- the command


def test_ends_are_warmed_once_and_then_left_alone(engine, tmp_path, capsys):
    text = written(tmp_path, "system.txt", "Be kind to all.")
    assert warm(text, "--url", engine.url, "--retain", "60") == 0
    n = len(engine.tokens("Be kind to all."))
    said = capsys.readouterr().out
    assert re.search(rf"system.txt: {n} tokens, warmed in \d+\.\d s, saves {n}\n", said)
    assert [(len(prompt), hints) for prompt, hints in engine.prompts] == [
        (n + 1, {"retain": 60.0, "store": False}),
        (n, {"retain": 60.0}),
        (n + 1, {"retain": 60.0, "store": False}),
    ]
    engine.prompts.clear()
    assert warm(text, "--url", engine.url, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["beginnings"]
    assert found.pop("seconds") >= 0 and found.pop("name").endswith("system.txt")
    assert found == {"good": True, "tokens": n, "saves": n, "computed": 1, "was_warm": True}
    assert len(engine.prompts) == 1
    # After a reset.
    engine.ends.clear()
    assert warm(text, "--url", engine.url) == 0
    assert re.search(rf"warmed in \d+\.\d s, saves {n}\n", capsys.readouterr().out)


def test_longer_ones_go_on_from_shorter_ones(engine, tmp_path, capsys):
    long = written(tmp_path, "long.json", list(range(100)))
    short = written(tmp_path, "short.json", list(range(40)))
    assert warm(long, short, "--url", engine.url, "--json") == 0
    assert [len(prompt) for prompt, _ in engine.prompts][:2] == [41, 40]
    found = json.loads(capsys.readouterr().out)["beginnings"]
    assert [row["tokens"] for row in found] == [100, 40], "in the order in which they were named"
    assert found[0]["computed"] == 61 + 60 + 1


def test_an_engine_that_stores_late_is_waited_for(engine, tmp_path, capsys):
    engine.late = 2
    path = written(tmp_path, "a.json", list(range(50)))
    assert warm(path, "--url", engine.url) == 0
    assert "saves 50\n" in capsys.readouterr().out


def test_an_engine_of_whole_blocks_says_what_it_saves(engine, tmp_path, capsys):
    engine.tails = False
    path = written(tmp_path, "a.json", list(range(50)))
    assert warm(path, "--url", engine.url) == 1
    said = "50 tokens, saves 48 only: this engine resumes at whole blocks of 16\n"
    assert said in capsys.readouterr().out


def test_a_server_that_does_not_tell_is_sent_everything(engine, tmp_path, capsys):
    engine.tells = False
    path = written(tmp_path, "a.json", list(range(50)))
    assert warm(path, "--url", engine.url) == 0
    printed = capsys.readouterr().out
    assert "a.json: 50 tokens, sent in" in printed
    assert "note: the server does not tell what it restored: start it with --enable" in printed
    assert tuple(range(50)) in engine.ends


def test_model_salt_and_key(engine, tmp_path, capsys, monkeypatch):
    engine.key = "secret"
    path = written(tmp_path, "a.json", list(range(50)))
    assert warm(path, "--url", engine.url) == 2
    assert "the server asks for a key (status 401): set VLLM_API_KEY" in capsys.readouterr().err
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    words = [path, "--url", engine.url, "--model", "adapter", "--salt", "pepper", "--json"]
    assert warm(*words) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "adapter"
    assert set(engine.salts) == {"pepper"}
    assert warm(path, "--url", engine.url, "--model", "other") == 2
    assert "expected other, found m, adapter: name one of those" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["secret\n", "sécret", "se cret"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_printed(
    engine, tmp_path, capsys, monkeypatch, key
):
    monkeypatch.setenv("VLLM_API_KEY", key)
    assert warm(written(tmp_path, "a.json", [1, 2]), "--url", engine.url) == 2
    said = capsys.readouterr().err
    assert "VLLM_API_KEY: expected printable ASCII in one line" in said
    assert "cret" not in said


def test_one_that_the_template_refuses_does_not_keep_others_back(engine, tmp_path, capsys):
    odd = written(tmp_path, "odd.json", [{"role": "odd", "content": "x"}])
    good = written(tmp_path, "good.txt", "Be kind.")
    assert warm(odd, good, "--url", engine.url) == 1
    printed = capsys.readouterr().out
    assert "odd.json" in printed and "status 400: expected the role system, user" in printed
    assert "good.txt: 8 tokens, warmed" in printed


def test_one_that_is_too_long_is_refused(engine, tmp_path, capsys):
    engine.most = 40
    path = written(tmp_path, "a.json", list(range(39)))
    assert warm(path, "--url", engine.url) == 1
    assert "a.json: expected at most 38 tokens" in capsys.readouterr().out
    assert not engine.prompts


def test_one_of_a_single_token_is_never_sent(engine, tmp_path, capsys):
    path = written(tmp_path, "a.json", [7])
    assert warm(path, "--url", engine.url) == 1
    assert "a.json: expected at least 2 tokens, found 1" in capsys.readouterr().out
    assert not engine.prompts


def test_a_bad_file_keeps_everything_back(engine, tmp_path, capsys):
    good, bad = written(tmp_path, "a.txt", "x"), written(tmp_path, "b.json", "{")
    assert warm(good, bad, "--url", engine.url) == 2
    assert "b.json: expected JSON" in capsys.readouterr().err
    assert not engine.prompts


@pytest.mark.parametrize("path", ["/tokenize", "/v1/completions"])
def test_a_server_that_breaks_ends_it(engine, tmp_path, capsys, path):
    engine.broken = path
    text = written(tmp_path, "a.txt", "Be kind.")
    assert warm(text, "--url", engine.url) == 2
    assert f"{path}: status 500: it is broken" in capsys.readouterr().err


def test_a_server_without_the_connector_is_named(engine, tmp_path, capsys):
    engine.metrics = 'vllm:num_requests_running{engine="0"} 0\n'
    text = written(tmp_path, "a.txt", "Be kind.")
    assert warm(text, "--url", engine.url) == 2
    assert "expected a server with hybrid-pages, found none of its" in capsys.readouterr().err
    assert [len(prompt) for prompt, _ in engine.prompts] == [8]


def test_without_metrics_it_goes_on(engine, tmp_path, capsys):
    engine.metrics = ""
    text = written(tmp_path, "a.txt", "Be kind.")
    assert warm(text, "--url", engine.url) == 0
    assert "note: it is not known whether hybrid-pages is in use" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:1", "cannot be read"),
        ("ftp://127.0.0.1", "expected an address that begins with http:// or https://"),
    ],
)
def test_a_server_that_is_not_there(tmp_path, capsys, url, said):
    text = written(tmp_path, "a.txt", "Be kind.")
    assert warm(text, "--url", url) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["a", "--retain", "0"], ["a", "--retain", "86401"]])
def test_a_wrong_command_line_shows_usage(capsys, words):
    with pytest.raises(SystemExit) as ended:
        warm(*words)
    assert ended.value.code == 2 and "usage:" in capsys.readouterr().err
