"""`hybrid-pages verify` without an engine: the prompts and questions that it runs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybrid_pages.adapter.errors import SettingsError
from hybrid_pages.verify import main, prompts, questions
from hybrid_pages.verify.prompts import GivenPrompts

N = 32


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_prompts_are_read_from_lines_and_objects(tmp_path):
    assert prompts.read(written(tmp_path, "a.txt", "\ufeffone\n\n two \n")) == [
        GivenPrompts("line 1", "one"),
        GivenPrompts("line 3", " two "),
    ]
    lines = '{"prompt": "one\\u2028two", "id": 4}\n{"prompt_token_ids": [1, 2]}\n'
    assert prompts.read(written(tmp_path, "a.jsonl", lines)) == [
        GivenPrompts("line 1", "one\u2028two"),
        GivenPrompts("line 2", tokens=(1, 2)),
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "a.jsonl:2: expected a JSON object"),
        ("[1]", "a.jsonl:2: expected a JSON object, found [1]"),
        ("{}", 'expected one of "prompt"'),
        ('{"prompt": ""}', 'expected one of "prompt"'),
        ('{"prompt": "a", "prompt_token_ids": [1]}', 'expected one of "prompt"'),
        ('{"prompt_token_ids": []}', '"prompt_token_ids", a list of whole numbers'),
        ('{"prompt_token_ids": [1, true]}', "a.jsonl:2: "),
        ('{"prompt_token_ids": [-1]}', "a.jsonl:2: "),
        ("[" * 100_000, "a.jsonl:2: expected a JSON object"),
        (r'{"prompt": "half of a character: \ud83d"}', "a.jsonl:2: expected a JSON object"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, said):
    path = written(tmp_path, "a.jsonl", f'{{"prompt": "fine"}}\n{line}\n')
    with pytest.raises(SettingsError) as error:
        prompts.read(path)
    assert said in str(error.value)


def test_files_without_prompts_or_text_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="at least one prompt"):
        prompts.read(written(tmp_path, "a.txt", "\n \n"))
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="UTF-8"):
        prompts.read(tmp_path / "b.txt")
    with pytest.raises(SettingsError, match="No such file"):
        prompts.read(tmp_path / "none")


def test_built_in_prompts_lie_around_boundaries_and_fit():
    assert prompts.lengths(N, 10_000) == [43, 65, 128, 208]
    assert prompts.lengths(N, 100) == [43, 65]
    assert prompts.lengths(N, 20) == [20]
    made = prompts.ids(N, 512, 10_000, 1)
    assert [len(each.tokens) for each in made] == [43, 65, 128, 208]
    assert made == prompts.ids(N, 512, 10_000, 1) != prompts.ids(N, 512, 10_000, 2)
    assert all(16 <= token < 512 for each in made for token in each.tokens)
    parts = prompts.cut(range(10_000), N, 10_000)
    assert [len(each.tokens) for each in parts] == [43, 65, 128, 208]
    assert len({each.tokens[0] for each in parts}) == 4


class Tokenizer:
    """An engine that only reads texts: a token a character, and no more than so many."""

    def __init__(self, most: int | None = None) -> None:
        self.asked: list[str] = []
        self.most = most

    def ask(self, command: str, texts: list[str]) -> dict[str, Any]:
        assert command == "encode"
        self.asked += texts
        return {"tokens": [[ord(letter) % 128 for letter in text[: self.most]] for text in texts]}


FACTS = {"block_tokens": N, "vocab": 128, "longest": 4096, "has_tokenizer": True}


def made(facts: dict[str, Any] = FACTS, given: Any = None, asked: Any = (), **more: Any) -> Any:
    args = SimpleNamespace(**{"seed": 1, "tokens": 8, "answer_tokens": 64} | more)
    return main.made(args, given, list(asked), Tokenizer(), facts)


def test_prompts_are_text_where_there_is_a_tokenizer_and_ids_where_not():
    assert [len(each.tokens) for each in made()] == [43, 65, 128, 208]
    assert "tokens of text" in made()[0].name
    assert "random tokens" in made({**FACTS, "has_tokenizer": False})[0].name
    text, ids = made(given=[GivenPrompts("a", "word"), GivenPrompts("b", tokens=(1, 2))])
    assert (len(text.tokens), ids.tokens) == (4, (1, 2))


@pytest.mark.parametrize("most", [0, 100])
def test_prompts_are_ids_where_the_tokenizer_knows_no_word_or_cuts_texts(most):
    args = SimpleNamespace(seed=1, tokens=8, answer_tokens=64)
    engine = Tokenizer(most)
    assert "random tokens" in main.made(args, None, [], engine, FACTS)[0].name
    assert len(engine.asked) <= 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            GivenPrompts("line 4", tokens=(1, 128)),
            "line 4: expected token ids below 128, found 128",
        ),
        (GivenPrompts("line 4", tokens=(1,) * 4090), "line 4: expected at most 4088 tokens"),
        (GivenPrompts("line 4", ""), "line 4: expected a prompt with tokens"),
    ],
)
def test_prompts_that_the_engine_does_not_take_are_named(given, said):
    with pytest.raises(SettingsError) as error:
        made(given=[given])
    assert said in str(error.value)


def test_answers_longer_than_the_model_are_refused():
    with pytest.raises(SettingsError, match="--tokens: expected less than"):
        made(tokens=4096)


GSM8K = [
    {"question": f"What is {n} and {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n:,}"}
    for n in range(600, 612)
]


def gsm8k(folder: Path, lines: list[dict[str, str]] = GSM8K) -> Path:
    return written(folder, "q.jsonl", "".join(f"{json.dumps(each)}\n" for each in lines))


def test_questions_follow_worked_ones_that_fill_a_block(tmp_path):
    asked = questions.read(gsm8k(tmp_path))
    assert (asked[0].line, asked[0].wanted) == (1, "1200")
    found = [each for each in made(asked=asked) if each.wanted is not None]
    assert [each.name for each in found] == [f"question {line}" for line in range(5, 13)]
    assert found[0].wanted == "1208" and found[0].stop == ("Question:",)
    assert all(len(each.tokens) > N for each in found)
    wide = made({**FACTS, "block_tokens": 400}, asked=asked)
    # More than four of them, since a prompt that is no longer than a block restores nothing.
    assert next(each.name for each in wide if each.wanted) > "question 5"
    with pytest.raises(SettingsError, match="tokenizer"):
        made({**FACTS, "has_tokenizer": False}, given=[GivenPrompts("a", tokens=(1,))], asked=asked)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"question": "a"}, "q.jsonl:2: "),
        ({"question": "a", "answer": "42"}, "q.jsonl:2: expected an answer with `#### NUMBER`"),
        ({"question": 1, "answer": "#### 2"}, "both texts"),
    ],
)
def test_a_wrong_question_is_named(tmp_path, line, said):
    with pytest.raises(SettingsError) as error:
        questions.read(gsm8k(tmp_path, [GSM8K[0], line]))
    assert said in str(error.value)


def test_one_question_alone_has_nothing_to_follow(tmp_path):
    with pytest.raises(SettingsError, match="at least two questions"):
        questions.read(gsm8k(tmp_path, GSM8K[:1]))


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("#### 1,200", True),
        (" 600 + 600 = 1200\n#### 1200.00 so 7", True),
        ("That makes $1,200.", True),
        ("1200 of 1201", False),
        ("#### 7, not 1200", False),
        ("-1200", False),
        ("many", False),
    ],
)
def test_an_answer_is_right_by_its_marked_or_last_number(text, right):
    assert questions.is_right(text, "1200") is right
