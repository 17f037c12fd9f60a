"""`make serve`, and vLLM's OpenAI server with the connector as its clients see it."""

import json
import re
import runpy
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from chat_server import Answer, Server, cached, free_port, stat
from fixtures import CACHE
from hybrid_pages import cli
from hybrid_pages.demo import serve
from hybrid_pages.demo.chat import SPECIAL, ensure_chat
from visitors import LONG, SCHEMA, Visitor, system, user

BLOCK = 64
MORE = ("--long-prefill-token-threshold", str(BLOCK), "--kv-cache-memory-bytes", str(32 << 20))
# In log-probability: what another batch, or steps that begin elsewhere, may move, with room to
# spare. What is restored is compared bit for bit in `test_families.py`.
ROUNDING = 0.5


@pytest.fixture(scope="module", params=["forgetful", pytest.param("plain", marks=pytest.mark.long)])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """As `make serve` starts them: one with the connector, and the one whose answers are expected.

    That one is the same, made to forget everything before each request, or one without the
    connector.
    """
    ensure_chat(CACHE / "hybrid-pages")
    served = Server(more=MORE)
    started = [served]
    if request.param == "plain":
        started.append(Server("--plain", more=MORE))
    try:
        for server in started:
            server.wait()
        yield served, started[-1]
    finally:
        for server in started:
            server.stop()


@pytest.fixture(scope="module")
def served(servers: tuple[Server, Server]) -> Server:
    """The server with the connector."""
    return servers[0]


@pytest.fixture(scope="module")
def visitors(servers: tuple[Server, Server]) -> tuple[Visitor, Visitor]:
    """Who has asked each server for everything."""
    first = Visitor(servers[0])
    both = first, Visitor(servers[1], after=first)
    for visitor in both:
        visitor.everything()
    return both


def alike(found: Answer, expected: Answer) -> int:
    """Checks as much of two answers as other steps and batches allow, and counts those tokens.

    Where a prompt is resumed, and who shares a step with whom, decides where steps end, and with
    that the rounding: tokens are the same until the first one where two were about equally likely.
    """
    checked, whole = 0, True
    for ours, theirs in zip(found.ranked, expected.ranked, strict=True):
        for (token, logprob, _), (other, reference, likely) in zip(ours, theirs, strict=False):
            if token != other:
                free = reference == likely[0]  # neither sampled nor bound to a structure
                assert not free or likely[0] - likely[1] < 2 * ROUNDING
                whole = False
                break
            assert abs(logprob - reference) < ROUNDING, (found.texts, expected.texts)
            checked += 1
    if whole:
        assert (found.texts, found.reasons) == (expected.texts, expected.reasons)
    return checked


# ---- what `make serve` prints


def test_the_printed_lines_show_a_hit(served: Server) -> None:
    if shutil.which("curl") is None:
        pytest.skip("there is no curl on this machine")
    first, reset, second, metrics = (
        subprocess.run(line, shell=True, check=True, capture_output=True, text=True).stdout
        for line in served.curl_lines()
    )
    cached = [
        json.loads(reply)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for reply in (first, second)
    ]
    assert cached == [0, 2 * BLOCK]
    assert json.loads(reset) == {"success": True}
    assert re.fullmatch(
        rf'vllm:hybrid_pages_hit_tokens_total{{.*"host"}} {2 * BLOCK}\.0\n', metrics
    )


# ---- one request at a time


@pytest.mark.parametrize(
    "what",
    ["talk", "fork", "stream", "cancelled", "structured", "stop"],
)
def test_answers_are_those_without_the_connector(
    visitors: tuple[Visitor, Visitor], what: str
) -> None:
    """Every text, every reason to end, and every log-probability, but for rounding."""
    with_it, without = (visitor.seen for visitor in visitors)
    names = [name for name in with_it if name.startswith(what)]
    checked = {name: alike(with_it[name], without[name]) for name in names}
    assert len(checked) >= 2
    assert sum(checked.values()) >= 4, checked


def test_what_is_computed_whole_is_equal_to_the_bit(visitors: tuple[Visitor, Visitor]) -> None:
    """Also a prompt that is known, of which the client wants rankings."""
    for name in ("talk museum 0", "prompt logprobs 0", "prompt logprobs 1"):
        assert visitors[0].seen[name] == visitors[1].seen[name]


def test_a_seed_says_the_same_again(visitors: tuple[Visitor, Visitor]) -> None:
    seen = visitors[0].seen
    assert seen["seeded"] == seen["seeded again"]
    assert seen["seeded"].texts != seen["unseeded"].texts
    if visitors[1].server.plain:
        alike(seen["seeded"], visitors[1].seen["seeded"])


def test_they_were_restored(visitors: tuple[Visitor, Visitor]) -> None:
    """With the connector alone: what is compared was computed on one side."""
    alone = ("talk", "fork", "cancelled", "prompt", "structured", "stop")
    assert not any(tokens for name, tokens in visitors[1].cached.items() if name.startswith(alone))
    cached, prompts = visitors[0].cached, visitors[0].prompts
    for name in ("talk museum", "talk station"):
        assert cached[f"{name} 0"] == 0
        for turn in (1, 2):
            assert cached[f"{name} {turn}"] >= prompts[f"{name} {turn - 1}"] > BLOCK
    for name in ("fork 3", "cancelled 1", "cancelled 2", "seeded", "stop long", "structured json"):
        assert cached[name] > 0, name
    assert cached["prompt logprobs 1"] == 0
    assert all(cached[f"at once {i}"] > 0 for i in range(16))
    hits = sum(tokens for name, tokens in cached.items() if name.startswith(alone))
    metrics = visitors[0].server.metrics()
    assert metrics["hit_tokens_total:host"] >= hits > 0
    assert metrics["tail_tokens_total"] > 0


def test_an_answer_depends_on_what_was_restored(visitors: tuple[Visitor, Visitor]) -> None:
    """Equal texts mean something: the same question after other instructions has another answer."""
    talks = [
        [visitors[0].seen[f"talk {name} {turn}"] for name in ("museum", "station")]
        for turn in range(3)
    ]
    assert all(museum.texts != station.texts for museum, station in talks)
    with pytest.raises(AssertionError):
        for museum, station in talks:
            alike(museum, station)


def test_streams_were_cancelled_amid_their_words(visitors: tuple[Visitor, Visitor]) -> None:
    assert len(visitors[0].generated) == 3
    assert all(0 < tokens < LONG for tokens in visitors[0].generated), visitors[0].generated


def test_structured_answers_have_their_structure(visitors: tuple[Visitor, Visitor]) -> None:
    seen = visitors[0].seen
    assert seen["structured choice"].texts[0] in ("north gate", "south gate", "no gate")
    assert re.fullmatch(r"[a-f]{3}-[0-9]{2}\.", seen["structured regex"].texts[0])
    made = json.loads(seen["structured json"].texts[0])
    assert set(made) == set(SCHEMA["required"])


def test_stop_strings_end_answers(visitors: tuple[Visitor, Visitor]) -> None:
    seen = visitors[0].seen
    whole = seen["stop whole"].texts[0]
    assert seen["stop none"].texts[0] == whole
    for name, stop in {"short": whole[5], "long": whole[7:12]}.items():
        assert seen[f"stop {name}"].texts[0] == whole[: whole.index(stop)]
        assert seen[f"stop {name}"].reasons == ("stop",)
    assert seen["stop kept"].texts[0] == whole[: whole.index(whole[7:12]) + 5]


# ---- batches


def test_several_choices_are_answered(visitors: tuple[Visitor, Visitor]) -> None:
    found, expected = (visitor.seen["choices"] for visitor in visitors)
    assert len(found.texts) == 3
    assert alike(found, expected) >= 12
    assert len(set(visitors[0].seen["other choices"].texts)) > 1


def test_sixteen_at_once_are_answered(visitors: tuple[Visitor, Visitor]) -> None:
    checked = sum(alike(*(visitor.seen[f"at once {i}"] for visitor in visitors)) for i in range(16))
    assert checked >= 100


# ---- the example


def test_the_third_request_of_the_example_is_restored(served: Server) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "vllm_server.py"))
    assert example["main"]([served.base]) >= BLOCK


def test_hints_come_in_the_body_of_a_request(served: Server) -> None:
    served.forget()
    before = served.metrics()
    hints = {"hybrid_pages": {"store": False, "retain": "long"}}
    messages = [{"role": "user", "content": "A secret. " * 3 * BLOCK}]
    served.chat(messages, extra_body={"kv_transfer_params": hints})
    after = served.metrics()
    assert after["refused_hints_total"] == before.get("refused_hints_total", 0) + 1
    assert after["stored_bytes_total"] == before.get("stored_bytes_total", 0)


# ---- warm


TEXT = "It begins like this, and then it goes on. " * 5
IDS = list(range(20, 20 + BLOCK + 9))


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line that warms a chat, a text and token ids."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    chat, text, ids = (tmp_path / name for name in ("chat.json", "text.txt", "ids.json"))
    chat.write_text(json.dumps([system("warm")]))
    text.write_text(TEXT)
    ids.write_text(json.dumps(IDS))
    return ["warm", str(chat), str(text), str(ids), "--retain", "60"]


def test_ends_that_were_warmed_are_places_to_resume_from(
    served: Server, known: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def warm(*more: str) -> str:
        assert cli.main([*known, *more, "--url", served.base]) == 0
        return capsys.readouterr().out

    def rows() -> list[dict[str, object]]:
        return json.loads(warm("--json"))["beginnings"]

    def said(words: str) -> int:
        return cached(served.chat([system("warm"), user(words)], count=1))

    def completed(prompt: object) -> int:
        return cached(
            served.client.completions.create(model=served.model, prompt=prompt, max_tokens=1)
        )

    served.forget(everything=True)
    first = rows()
    tokens = [row["tokens"] for row in first]
    assert all(each % BLOCK for each in tokens), "whole blocks would do"
    assert [row["saves"] for row in first] == tokens
    assert not any(row["was_warm"] for row in first)
    # Each prompt goes on from there, and the metrics say so.
    served.forget()
    before = served.metrics()
    assert [said("Hello"), completed(f"{TEXT}And more."), completed([*IDS, 9, 9])] == tokens
    after = served.metrics()
    counted = {name: value - before.get(name, 0) for name, value in after.items()}
    assert counted["lookups_total"] == 3
    assert counted["hit_tokens_total:host"] == sum(tokens)
    assert counted["tail_tokens_total"] == sum(each % BLOCK for each in tokens)
    assert counted.get("refused_hints_total", 0) == 0
    # A second time, nothing but the one token that shows it is computed.
    assert [(row["was_warm"], row["computed"]) for row in rows()] == [(True, 1)] * 3
    lines = warm().splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        f"{each} tokens, was warm, saves {each}" for each in tokens
    ]
    served.forget(everything=True)
    assert said("Are you there?") == 0
    assert not any(row["was_warm"] for row in rows()[1:])
    served.forget()
    assert said("Good morning") == tokens[0]


def test_a_server_without_the_connector_is_not_warmed(
    servers: tuple[Server, Server], known: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if not servers[1].plain:
        pytest.skip("both have the connector")
    assert cli.main([*known, "--url", servers[1].base]) == 2
    assert "expected a server with hybrid-pages, found none" in capsys.readouterr().err


# ---- afterwards


@pytest.mark.long
def test_memory_stays_flat(visitors: tuple[Visitor, Visitor]) -> None:
    """Requests that are sent alone, again and again, each time computed and stored anew.

    In batches vLLM itself grows for a while, with and without the connector: by what its kernels
    keep for each new shape. The arena and the model are no anonymous memory.
    """
    server = visitors[0].server
    again = Visitor(server)
    sizes, stored = [], []
    for _ in range(4):
        server.forget(everything=True)
        again.alone()
        sizes.append(server.anonymous_bytes())
        stored.append(server.metrics()["stored_bytes_total"])
    assert sizes[0] > 100 << 20, "the server's processes were not found"
    bound = 3 << 20
    assert stored[-1] - stored[0] > 2 * bound, "too little was stored to tell a leak of it"
    assert sizes[-1] - sizes[0] < bound


def test_nothing_failed_and_nothing_is_held(visitors: tuple[Visitor, Visitor]) -> None:
    """After all of the above, cancelled streams included."""
    metrics = visitors[0].server.metrics()
    assert {name: value for name, value in metrics.items() if name.startswith("failures")} == {}
    assert metrics["leased_bytes"] == 0
    assert metrics["hit_tokens_total:host"] > 0
    assert metrics["loaded_bytes_total:pages"] > 0
    assert not visitors[1].server.plain or visitors[1].server.metrics() == {}


def test_ctrl_c_ends_every_process(servers: tuple[Server, Server]) -> None:
    for server in dict.fromkeys(servers):
        before = server.processes()
        assert len(before) >= 3
        assert server.stop() == 0, "\n".join(server.said)
        assert [process for process in before if stat(process)[0] not in "XZ"] == []
        assert server.said[-1] == "hybrid-pages serve: ended"


# ---- what can go wrong before


def arguments(port: int) -> SimpleNamespace:
    return SimpleNamespace(port=port, host_gb=0.25, plain=False, verbose=False, json=False, vllm=[])


def test_a_port_in_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind((serve.HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve.run(arguments(port)) == 2
    assert f"expected a free port, found {port} in use" in capsys.readouterr().err


def test_a_server_that_dies_shows_its_last_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another module with a command line, which rejects these arguments.
    monkeypatch.setattr(serve, "SERVER", "json.tool")
    monkeypatch.setattr(serve, "ensure_chat", lambda: Path("no-model"))
    assert serve.run(arguments(free_port())) == 1
    said = capsys.readouterr().err
    assert "the server ended with status 2\nits last lines:\nusage:" in said


def test_without_vllm_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hybrid_pages.cli.info._engine", lambda: None)
    assert cli.main(["serve"]) == 2
    assert "hybrid-pages serve: expected vllm" in capsys.readouterr().err


# ---- the tokenizer


def test_every_byte_and_every_token_can_be_said() -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ensure_chat(CACHE / "hybrid-pages"))
    assert len(tokenizer) == tokenizer.vocab_size == 512
    assert all(isinstance(tokenizer.decode([token]), str) for token in range(512))
    assert tuple(tokenizer.convert_ids_to_tokens([0, 1, 2])) == SPECIAL
    text = bytes(range(256)).decode("latin-1") + " ban \u2713 \U0001f682\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
